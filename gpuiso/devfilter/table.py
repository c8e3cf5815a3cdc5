# SPDX-License-Identifier: Apache-2.0
"""What a program answers for every device, as a table: majors down, minors across, an answer in each cell."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from gpuiso.devfilter.explore import Answers
from gpuiso.devfilter.spans import ALL_MINORS, Spans
from gpuiso.policy.rule import MKNOD, READ, WRITE

__all__ = ["MASKS", "Answer", "Cells", "Table", "lay_out", "singly"]

MASKS = (0, MKNOD, READ, WRITE, READ | WRITE)
"""What the kernel asks with: mknod(2) for its bit alone, open(2) for reading and writing, access(2) also
for neither (devcgroup_inode_mknod and devcgroup_inode_permission, include/linux/device_cgroup.h)."""


@dataclass(frozen=True)
class Answer:
    """What is answered for one device: bit ``1 << mask`` for each of MASKS, allowed and not known."""

    allowed: int
    unknown: int = 0

    @property
    def bits(self) -> int:
        """The access bits that are allowed each on its own."""
        return sum(bit for bit in (MKNOD, READ, WRITE) if self.allowed >> bit & 1)


Cells = tuple[tuple[int, int, Answer], ...]
"""First and last minor, answer: covering every minor, in order, neighbours different."""
Table = tuple[tuple[int, int, Cells], ...]
"""First and last major, cells: covering every major, in order, neighbours different."""


def singly(bits: int) -> Answer:
    """The answer where ``bits`` are allowed and each bit is decided on its own.

    A test for existence asks for no bit; it is allowed where any is.
    """
    return Answer(sum(1 << mask for mask in MASKS if bits and mask & ~bits == 0))


def lay_out(answers: Sequence[Answers]) -> Table:
    """Lay the regions of the masks (as MASKS has them) over each other."""
    regions = [region.rows for a in answers for region in (a.allowed, a.denied, a.stuck)]
    starts = sorted({edge for rows in regions for low, high, _ in rows for edge in (low, high + 1)})
    at = [0] * len(regions)
    table: list[tuple[int, int, Cells]] = []
    for low, following in pairwise(starts):
        held: list[Spans] = []
        for number, rows in enumerate(regions):
            while at[number] < len(rows) and rows[at[number]][1] < low:
                at[number] += 1
            inside = at[number] < len(rows) and rows[at[number]][0] <= low
            held.append(rows[at[number]][2] if inside else ())
        cells = _cells(tuple(held))
        if table and table[-1][2] == cells:
            table[-1] = (table[-1][0], following - 1, cells)
        else:
            table.append((low, following - 1, cells))
    return tuple(table)


@lru_cache(maxsize=1024)
def _cells(held: tuple[Spans, ...]) -> Cells:
    """Answers by minor, from the allowed, denied and stuck minors of each mask."""
    starts = sorted({edge for spans in held for low, high in spans for edge in (low, high + 1)})
    cells: list[tuple[int, int, Answer]] = []
    for low, following in pairwise(starts):
        allowed = unknown = 0
        for index, mask in enumerate(MASKS):
            yes, no, stuck = (_holds(spans, low) for spans in held[3 * index : 3 * index + 3])
            allowed |= yes << mask
            unknown |= (stuck or (yes and no)) << mask
        answer = Answer(allowed & ~unknown, unknown)
        if cells and cells[-1][2] == answer:
            cells[-1] = (cells[-1][0], following - 1, answer)
        else:
            cells.append((low, following - 1, answer))
    return tuple(cells)


def _holds(spans: Spans, number: int) -> bool:
    index = bisect_right(spans, (number, ALL_MINORS[1])) - 1
    return index >= 0 and spans[index][1] >= number
