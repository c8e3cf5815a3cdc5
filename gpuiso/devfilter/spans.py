# SPDX-License-Identifier: Apache-2.0
"""Sets of numbers as spans, and sets of (major, minor) pairs as rows of spans."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

from gpuiso.policy.rule import MAX_MAJOR, MAX_MINOR

__all__ = ["ALL_MAJORS", "ALL_MINORS", "Region", "Row", "Span", "Spans", "complement", "intersect", "union"]

Span = tuple[int, int]
"""First and last number, both included."""
Spans = tuple[Span, ...]
"""Sorted, disjoint, not touching."""
Row = tuple[int, int, Spans]
"""First and last major, and the minors that belong to each of them."""

ALL_MAJORS: Span = (0, MAX_MAJOR)
ALL_MINORS: Span = (0, MAX_MINOR)


def union(spans: Iterable[Span]) -> Spans:
    """Sort spans and join those that overlap or touch."""
    joined: list[Span] = []
    for low, high in sorted(spans):
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(high, joined[-1][1]))
        else:
            joined.append((low, high))
    return tuple(joined)


def intersect(left: Spans, right: Spans) -> Spans:
    """What both hold."""
    common: list[Span] = []
    i = j = 0
    while i < len(left) and j < len(right):
        low, high = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if low <= high:
            common.append((low, high))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return tuple(common)


def complement(spans: Spans, within: Span) -> Spans:
    """What of ``within`` is in none of ``spans``."""
    gaps: list[Span] = []
    low = within[0]
    for first, last in spans:
        if first > low:
            gaps.append((low, first - 1))
        low = last + 1
    if low <= within[1]:
        gaps.append((low, within[1]))
    return tuple(gaps)


class Region:
    """A set of device numbers: rows that are disjoint in their majors, sorted.

    Splitting takes rows out of the region itself, so that following a long program copies little.
    """

    __slots__ = ("rows",)

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self.rows: list[Row] = list(rows)

    @classmethod
    def everything(cls) -> Region:
        return cls([(*ALL_MAJORS, (ALL_MINORS,))])

    def copy(self) -> Region:
        return Region(self.rows)

    def take_majors(self, majors: Spans) -> Region:
        """Remove and return the part whose major is in ``majors``."""
        if len(rest := complement(majors, ALL_MAJORS)) < len(majors):
            kept = Region()
            for span in rest:
                kept.rows += self._cut(*span)
            taken, self.rows = self.rows, kept.rows
            return Region(taken)
        taken = []
        for span in majors:
            taken += self._cut(*span)
        return Region(taken)

    def _cut(self, low: int, high: int) -> list[Row]:
        rows = self.rows
        first = bisect_left(rows, (low,))
        if first and rows[first - 1][1] >= low:
            first -= 1
        last = first
        while last < len(rows) and rows[last][0] <= high:
            last += 1
        cut = rows[first:last]
        keep: list[Row] = []
        if cut and cut[0][0] < low:
            start, end, minors = cut[0]
            keep.append((start, low - 1, minors))
            cut[0] = (low, end, minors)
        if cut and cut[-1][1] > high:
            start, end, minors = cut[-1]
            keep.append((high + 1, end, minors))
            cut[-1] = (start, high, minors)
        rows[first:last] = keep
        return cut

    def take_minors(self, minors: Spans) -> Region:
        """Remove and return the part whose minor is in ``minors``."""
        others = complement(minors, ALL_MINORS)
        taken, kept = [], []
        for low, high, held in self.rows:
            if inside := intersect(held, minors):
                taken.append((low, high, inside))
            if outside := intersect(held, others):
                kept.append((low, high, outside))
        self.rows = kept
        return Region(taken)

    def take_pairs(self, pairs: Iterable[tuple[int, int]]) -> Region:
        """Remove and return single devices, all of which the region holds."""
        taken = Region()
        for major, minor in pairs:
            row = Region(self._cut(major, major))
            taken.add(row.take_minors(((minor, minor),)))
            self.add(row)
        return taken

    def size(self) -> int:
        """How many devices it holds."""
        return sum(
            (high - low + 1) * sum(last - first + 1 for first, last in minors) for low, high, minors in self.rows
        )

    def add(self, other: Region) -> None:
        """Add the devices of ``other``, which is used up."""
        if len(other.rows) > len(self.rows):
            self.rows, other.rows = other.rows, self.rows
        for low, high, minors in other.rows:
            self._add_row(low, high, minors)

    def _add_row(self, low: int, high: int, minors: Spans) -> None:
        overlapping = self._cut(low, high)
        for first, last, held in overlapping:
            if first > low:
                insort(self.rows, (low, first - 1, minors))
            insort(self.rows, (first, last, held if held == minors else union((*held, *minors))))
            low = last + 1
        if low <= high:
            insort(self.rows, (low, high, minors))
