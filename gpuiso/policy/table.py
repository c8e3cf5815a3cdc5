# SPDX-License-Identifier: Apache-2.0
"""What rules mean for every device, as a table: majors down, minors across, allowed bits in each cell.

Two lists of rules mean the same exactly if their tables are equal, however they are written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from gpuiso.policy.meaning import meaning
from gpuiso.policy.rule import MAX_MAJOR, MAX_MINOR, DeviceType, Rule

__all__ = ["DEVICE_TYPES", "Cells", "Table", "combine", "equivalent", "overlay", "table"]

_V = TypeVar("_V")

DEVICE_TYPES: tuple[DeviceType, ...] = ("c", "b")

Cells = tuple[tuple[int, int, int], ...]
"""First and last minor, allowed bits: covering every minor, in order, neighbours different."""
Table = tuple[tuple[int, int, Cells], ...]
"""First and last major, cells: covering every major, in order, neighbours different."""


def table(rules: Sequence[Rule], device: DeviceType, *, default_allow: bool = False) -> Table:
    """The table of ``rules`` for one device type."""
    found = meaning(rules, device, default_allow=default_allow)
    # What no rule speaks of has bits of its own; Meaning says None only for "as all others".
    usual = found.others.usual or 0
    rows: list[tuple[int, int, Cells]] = []
    others = _cells(usual, found.others.exceptions)
    following = 0
    for major, row in sorted(found.rows.items()):
        if major > following:
            _append(rows, following, major - 1, others)
        exceptions = row.exceptions if row.usual is not None else {**found.others.exceptions, **row.exceptions}
        _append(rows, major, major, _cells(usual if row.usual is None else row.usual, exceptions))
        following = major + 1
    if following <= MAX_MAJOR:
        _append(rows, following, MAX_MAJOR, others)
    return tuple(rows)


def equivalent(left: Sequence[Rule], right: Sequence[Rule], *, left_default: bool, right_default: bool) -> bool:
    """Whether two lists of rules, each with its default, decide every access alike."""
    return all(
        table(left, device, default_allow=left_default) == table(right, device, default_allow=right_default)
        for device in DEVICE_TYPES
    )


def combine(left: Table, right: Table, bits: Callable[[int, int], int]) -> Table:
    """The table of ``bits`` of what two tables have in each cell."""
    rows: list[tuple[int, int, Cells]] = []
    for low, high, mine, theirs in overlay(left, right):
        cells: list[tuple[int, int, int]] = []
        for first, last, one, other in overlay(mine, theirs):
            _append(cells, first, last, bits(one, other))
        _append(rows, low, high, tuple(cells))
    return tuple(rows)


def overlay(
    left: Sequence[tuple[int, int, _V]], right: Sequence[tuple[int, int, _V]]
) -> Iterator[tuple[int, int, _V, _V]]:
    """Two coverings of the same numbers, cut wherever either changes."""
    i = j = low = 0
    while i < len(left) and j < len(right):
        high = min(left[i][1], right[j][1])
        yield low, high, left[i][2], right[j][2]
        low = high + 1
        i += left[i][1] == high
        j += right[j][1] == high


def _cells(usual: int, exceptions: Mapping[int, int]) -> Cells:
    cells: list[tuple[int, int, int]] = []
    following = 0
    for minor, bits in sorted(exceptions.items()):
        if minor > following:
            _append(cells, following, minor - 1, usual)
        _append(cells, minor, minor, bits)
        following = minor + 1
    if following <= MAX_MINOR:
        _append(cells, following, MAX_MINOR, usual)
    return tuple(cells)


def _append(parts: list[tuple[int, int, _V]], low: int, high: int, value: _V) -> None:
    if parts and parts[-1][2] == value:
        parts[-1] = (parts[-1][0], high, value)
    else:
        parts.append((low, high, value))
