# SPDX-License-Identifier: Apache-2.0
"""The normal form of a list of rules: the same for all lists that mean the same, and short."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TypeVar

from gpuiso.policy.rule import ALL_ACCESS, DeviceType, Rule, letters
from gpuiso.policy.table import DEVICE_TYPES, Cells, overlay, table

__all__ = ["normal_form"]

_V = TypeVar("_V")


def normal_form(rules: Sequence[Rule], *, default_allow: bool = False) -> tuple[bool, tuple[Rule, ...]]:
    """The default and the rules: first what holds for a device type, then for a minor, a major, a device."""
    tables = {device: table(rules, device, default_allow=default_allow) for device in DEVICE_TYPES}
    usual = {device: _most(rows) for device, rows in tables.items()}
    allow = all(_most(cells) == ALL_ACCESS for cells in usual.values())
    lines: list[Rule] = []
    for device, rows in tables.items():
        lines += _usual_row(device, ALL_ACCESS if allow else 0, usual[device])
        for low, high, cells in rows:
            if cells != usual[device]:
                for major in range(low, high + 1):
                    lines += _row(device, major, usual[device], cells)
    return allow, tuple(lines)


def _most(parts: Sequence[tuple[int, int, _V]]) -> _V:
    """What holds for the most numbers; of several the first, so that the answer is always the same."""
    count: Counter[_V] = Counter()
    for low, high, value in parts:
        count[value] += high - low + 1
    return count.most_common(1)[0][0]


def _usual_row(device: DeviceType, base: int, cells: Cells) -> Iterator[Rule]:
    usual = _most(cells)
    yield from _change(device, None, None, base, usual)
    for low, high, bits in cells:
        for minor in range(low, high + 1) if bits != usual else ():
            yield from _change(device, None, minor, usual, bits)


def _row(device: DeviceType, major: int, before: Cells, after: Cells) -> Iterator[Rule]:
    """The rules that turn a row that has ``before`` into one that has ``after``."""
    usual = _most(after)
    start: Cells = before
    if usual != _most(before):
        some = every = before[0][2]
        for _, _, bits in before:
            some, every = some | bits, every & bits
        yield from _set(device, major, None, allow=usual & ~every, deny=some & ~usual)
        start = ((0, before[-1][1], usual),)
    for low, high, old, new in overlay(start, after):
        for minor in range(low, high + 1) if old != new else ():
            yield from _change(device, major, minor, old, new)


def _change(device: DeviceType, major: int | None, minor: int | None, old: int, new: int) -> Iterator[Rule]:
    yield from _set(device, major, minor, allow=new & ~old, deny=old & ~new)


def _set(device: DeviceType, major: int | None, minor: int | None, *, allow: int, deny: int) -> Iterator[Rule]:
    if allow:
        yield Rule(True, device, major, minor, letters(allow))
    if deny:
        yield Rule(False, device, major, minor, letters(deny))
