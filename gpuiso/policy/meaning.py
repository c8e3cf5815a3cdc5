# SPDX-License-Identifier: Apache-2.0
"""What a list of rules means for every device: which access bits are allowed.

Later rules win, each access bit on its own. An access is allowed if each bit of it is; a test for
existence (no bits) is allowed where any bit is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpuiso.policy.rule import ALL_ACCESS, DeviceType, Rule

__all__ = ["Meaning", "Row", "allowed_bits", "meaning", "permits"]

_Ranked = tuple[int, Rule]
"""A rule with its place in the list."""


@dataclass(frozen=True)
class Row:
    """The minors of one major: ``exceptions`` by number, all others ``usual``; None: as in Meaning.others."""

    usual: int | None
    exceptions: Mapping[int, int]


@dataclass(frozen=True)
class Meaning:
    """Allowed bits for one device type: ``others`` for each major that has no row of its own."""

    rows: Mapping[int, Row]
    others: Row

    def bits(self, major: int, minor: int) -> int:
        row = self.rows.get(major, self.others)
        if minor in row.exceptions:
            return row.exceptions[minor]
        if row.usual is not None:
            return row.usual
        others = self.others.exceptions.get(minor, self.others.usual)
        return 0 if others is None else others


def permits(bits: int, mask: int) -> bool:
    """Whether an access with ``mask`` is allowed where ``bits`` are."""
    return mask & ~bits == 0 if mask else bits != 0


def allowed_bits(
    rules: Sequence[Rule], device: DeviceType, major: int, minor: int, *, default_allow: bool = False
) -> int:
    """The bits that ``rules`` allow for one device, by going through them in order."""
    bits = ALL_ACCESS if default_allow else 0
    for rule in rules:
        if rule.matches(device, major, minor):
            bits = bits | rule.mask if rule.allow else bits & ~rule.mask
    return bits


def meaning(rules: Sequence[Rule], device: DeviceType, *, default_allow: bool = False) -> Meaning:
    """What ``rules`` mean for all devices of one type."""
    groups: dict[int | None, dict[int | None, list[_Ranked]]] = defaultdict(lambda: defaultdict(list))
    for rank, rule in _living(rules, device):
        groups[rule.major][rule.minor].append((rank, rule))
    # Of rules that speak of the same numbers only those matter that decide a bit no later one does.
    lists = {major: {minor: _deciding(found) for minor, found in row.items()} for major, row in groups.items()}
    everywhere = lists.pop(None, {})
    start = ALL_ACCESS if default_allow else 0

    def bits(major: int | None, minor: int | None) -> int:
        own = lists.get(major, {}) if major is not None else {}
        found = [row[key] for row in (everywhere, own) for key in {None, minor} if key in row]
        return _apply(start, (ranked for group in found for ranked in group))

    usual = bits(None, None)
    others = Row(usual, _different(usual, {minor: bits(None, minor) for minor in everywhere if minor is not None}))
    rows: dict[int, Row] = {}
    for major, row in lists.items():
        if major is None:
            continue
        if None in row:
            whole = bits(major, None)
            minors = {minor for minor in (*row, *everywhere) if minor is not None}
            candidate = Row(whole, _different(whole, {minor: bits(major, minor) for minor in minors}))
            if candidate != others:
                rows[major] = candidate
            continue
        own = {minor: bits(major, minor) for minor in row if minor is not None}
        own = {minor: value for minor, value in own.items() if value != others.exceptions.get(minor, usual)}
        if own:
            rows[major] = Row(None, own)
    return Meaning(rows, others)


def _living(rules: Sequence[Rule], device: DeviceType) -> list[_Ranked]:
    """The rules that are not wholly overruled by later ones for every device, in order."""
    kept: list[_Ranked] = []
    decided = 0
    for rank in range(len(rules) - 1, -1, -1):
        rule = rules[rank]
        if rule.type not in ("a", device) or not rule.mask & ~decided:
            continue
        kept.append((rank, rule))
        if rule.major is None and rule.minor is None:
            decided |= rule.mask
    return kept[::-1]


def _different(usual: int, exceptions: Mapping[int, int]) -> dict[int, int]:
    return {minor: bits for minor, bits in exceptions.items() if bits != usual}


def _deciding(ranked: Sequence[_Ranked]) -> list[_Ranked]:
    kept: list[_Ranked] = []
    decided = 0
    for rank, rule in reversed(ranked):
        if rule.mask & ~decided:
            kept.append((rank, rule))
            decided |= rule.mask
    return kept


def _apply(bits: int, ranked: Iterable[_Ranked]) -> int:
    for _, rule in sorted(ranked, key=lambda pair: pair[0]):
        bits = bits | rule.mask if rule.allow else bits & ~rule.mask
    return bits
