# SPDX-License-Identifier: Apache-2.0
"""Rules as a default and exceptions to it that only add up.

cgroup v1 and systemd keep such lists. An exception cannot be taken back in part: what a wildcard gives, no narrower
entry takes away (the v1 kernel accepts such a write and changes nothing). And an access must be covered by one
entry as a whole, so each entry here has all the bits that its devices have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from gpuiso.errors import NotSupported
from gpuiso.policy.meaning import Meaning, Row, meaning
from gpuiso.policy.rule import ALL_ACCESS, DeviceType, Rule
from gpuiso.policy.table import DEVICE_TYPES

__all__ = ["Exceptions", "Hole", "Key", "deciding_rule", "exceptions"]

Key = tuple[DeviceType, int | None, int | None]
"""Device type, major and minor; None is every number."""
Exceptions = dict[Key, int]
"""Access bits by key: allowed ones where the default is to deny, denied ones where it is to allow."""


class Hole(NotSupported):
    """A rule would have to take back a part of what a wildcard gives. ``rule`` is it."""

    def because(self, why: str) -> NotSupported:
        """The same with the reason why a back end cannot hold it."""
        return NotSupported(f"{self.message}; {why}", hint=self.hint)

    def __init__(self, rule: Rule | None, *, default_allow: bool) -> None:
        gives, takes = ("denies", "allows") if default_allow else ("allows", "denies")
        subject = f"{rule.place or rule}" if rule is not None else "the default"
        super().__init__(
            f"{subject}: {takes} a part of what a wildcard {gives}",
            hint="name the devices one by one instead of with a wildcard",
        )
        self.rule = rule


@dataclass(frozen=True)
class _Side:
    """One device type of the rules, with bits turned into those an exception has."""

    rules: Sequence[Rule]
    device: DeviceType
    found: Meaning
    default_allow: bool

    def bits(self, allowed: int) -> int:
        return ALL_ACCESS & ~allowed if self.default_allow else allowed

    def hole(self, major: int | None, minor: int | None, bits: int) -> NoReturn:
        """``bits`` at these numbers are lacking although a wildcard gives them."""
        rule = deciding_rule(self.rules, self.device, major, minor, bits)
        raise Hole(rule, default_allow=self.default_allow)


def exceptions(rules: Sequence[Rule], *, rules_default: bool, default_allow: bool) -> Exceptions:
    """The exceptions to ``default_allow`` that mean what ``rules`` (whose own default is ``rules_default``) mean.

    :raises Hole: there are none.
    """
    found: Exceptions = {}
    for device in DEVICE_TYPES:
        side = _Side(rules, device, meaning(rules, device, default_allow=rules_default), default_allow)
        found.update(_side(side))
    return found


def _side(side: _Side) -> Iterator[tuple[Key, int]]:
    others = side.found.others
    everywhere = side.bits(others.usual or 0)
    if everywhere:
        yield (side.device, None, None), everywhere
    columns: dict[int, int] = {}
    for minor, allowed in others.exceptions.items():
        columns[minor] = side.bits(allowed)
        if lacking := everywhere & ~columns[minor]:
            side.hole(None, minor, lacking)
        yield (side.device, None, minor), columns[minor]
    for major, row in side.found.rows.items():
        yield from _row(side, major, row, everywhere, columns)


def _row(side: _Side, major: int, row: Row, everywhere: int, columns: Mapping[int, int]) -> Iterator[tuple[Key, int]]:
    usual = everywhere if row.usual is None else side.bits(row.usual)
    if lacking := everywhere & ~usual:
        side.hole(major, None, lacking)
    if usual != everywhere:
        yield (side.device, major, None), usual
    if row.usual is not None:
        for minor, bits in columns.items():
            if minor not in row.exceptions and (lacking := bits & ~usual):
                side.hole(major, minor, lacking)
    for minor, allowed in row.exceptions.items():
        own, column = side.bits(allowed), columns.get(minor, 0)
        if lacking := (usual | column) & ~own:
            side.hole(major, minor, lacking)
        if own not in (usual, column):
            yield (side.device, major, minor), own


def deciding_rule(
    rules: Sequence[Rule], device: DeviceType, major: int | None, minor: int | None, bits: int
) -> Rule | None:
    """The last rule that decides any of ``bits``; None as a number stands for one that no rule names."""
    if major is None:
        major = _unnamed({rule.major for rule in rules})
    if minor is None:
        minor = _unnamed({rule.minor for rule in rules})
    return next((rule for rule in reversed(rules) if rule.matches(device, major, minor) and rule.mask & bits), None)


def _unnamed(named: set[int | None]) -> int:
    number = 0
    while number in named:
        number += 1
    return number
