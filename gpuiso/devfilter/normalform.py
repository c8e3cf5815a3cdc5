# SPDX-License-Identifier: Apache-2.0
"""A table of answers written down as lines, the later of which win.

First what holds for every device, then for a device type, a minor of every major, a major, a device.
Programs of other makers do not always decide access bit by bit: the allow-lists of runc and crun
refuse a mask that no single rule covers, and their deny rules let a wider mask pass. A line says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from gpuiso.devfilter.interpret import Access
from gpuiso.devfilter.spans import Span
from gpuiso.devfilter.table import MASKS, Answer, Cells, Table, singly
from gpuiso.policy.rule import ALL_ACCESS, DeviceType, RuleType, letters

__all__ = ["EXISTS", "Line", "normal_form"]

EXISTS = "F_OK"
"""How the access without any bit, a test for existence, is written."""


@dataclass(frozen=True)
class Line:
    """One line of the normal form; later lines win, each access bit on its own.

    ``major`` and ``minor`` are spans, or None for every number. ``access`` are the letters allowed or
    denied. ``passes`` lists accesses that are allowed although a bit of them is denied, ``refuses``
    those denied although each bit is allowed; ``unknown`` those with no known answer.
    """

    allow: bool
    type: RuleType
    major: Span | None
    minor: Span | None
    access: str
    passes: tuple[str, ...] = ()
    refuses: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    def matches(self, access: Access) -> bool:
        """Whether the line speaks of this device."""
        return (
            self.type in ("a", access.type)
            and (self.major is None or self.major[0] <= access.major <= self.major[1])
            and (self.minor is None or self.minor[0] <= access.minor <= self.minor[1])
        )

    @property
    def exact(self) -> bool:
        """Whether a rule, decided bit by bit, says all there is to say."""
        return not (self.passes or self.refuses or self.unknown)

    def __str__(self) -> str:
        numbers = f"{_number(self.major)}:{_number(self.minor)}"
        text = f"{'allow' if self.allow else 'deny'} {self.type} {numbers} {self.access}"
        kinds = (("lets pass", self.passes), ("refuses", self.refuses), ("unknown for", self.unknown))
        notes = [f"{word} {', '.join(masks)}" for word, masks in kinds if masks]
        return f"{text} ({'; '.join(notes)})" if notes else text


def _number(span: Span | None) -> str:
    if span is None:
        return "*"
    return str(span[0]) if span[0] == span[1] else f"{span[0]}-{span[1]}"


def normal_form(tables: Mapping[DeviceType, Table]) -> list[Line]:
    """The lines for the tables of both device types."""
    usual = {device: _usual_row(table) for device, table in tables.items()}
    allow = all(_usual_answer(cells).bits == ALL_ACCESS for cells in usual.values())
    base = singly(ALL_ACCESS if allow else 0)
    lines = [Line(allow, "a", None, None, letters(ALL_ACCESS))]
    for device, table in tables.items():
        lines += _row(device, None, ((0, 0, base),), usual[device])
        for low, high, cells in table:
            if cells != usual[device]:
                lines += _row(device, (low, high), usual[device], cells)
    return lines


def _usual_row(table: Table) -> Cells:
    count: Counter[Cells] = Counter()
    for low, high, cells in table:
        count[cells] += high - low + 1
    return count.most_common(1)[0][0]


def _usual_answer(cells: Cells) -> Answer:
    count: Counter[Answer] = Counter()
    for low, high, answer in cells:
        count[answer] += high - low + 1
    return count.most_common(1)[0][0]


def _row(device: DeviceType, major: Span | None, before: Cells, after: Cells) -> Iterator[Line]:
    """The lines that turn a row that answers ``before`` into one that answers ``after``."""
    usual = _usual_answer(after)
    if usual == _usual_answer(before):
        for low, high, old, new in _overlay(before, after):
            yield from _change(device, major, (low, high), old, new)
        return
    if len({answer for _, _, answer in before}) == 1:
        yield from _change(device, major, None, before[0][2], usual)
    else:
        yield from _restate(device, major, None, usual)
    for low, high, answer in after:
        yield from _change(device, major, (low, high), usual, answer)


def _overlay(before: Cells, after: Cells) -> Iterator[tuple[int, int, Answer, Answer]]:
    """Spans of minors with the answers of both, where neither changes within."""
    i = j = low = 0
    while j < len(after):
        old_end = before[i][1] if i + 1 < len(before) else after[-1][1]
        end = min(old_end, after[j][1])
        yield low, end, before[i][2], after[j][2]
        low = end + 1
        if old_end == end and i + 1 < len(before):
            i += 1
        if after[j][1] == end:
            j += 1


def _change(device: DeviceType, major: Span | None, minor: Span | None, old: Answer, new: Answer) -> Iterator[Line]:
    if new == old:
        return
    gained, lost = new.bits & ~old.bits, old.bits & ~new.bits
    exact_before = old == singly(old.bits)
    if not exact_before or not (gained or lost):
        yield from _restate(device, major, minor, new)
        return
    lines = [
        Line(allow, device, major, minor, letters(bits)) for allow, bits in ((True, gained), (False, lost)) if bits
    ]
    lines[-1] = _annotate(lines[-1], new)
    yield from lines


def _restate(device: DeviceType, major: Span | None, minor: Span | None, new: Answer) -> Iterator[Line]:
    """Lines that hold whatever held before."""
    parts = ((True, new.bits), (False, ALL_ACCESS & ~new.bits))
    lines = [Line(allow, device, major, minor, letters(bits)) for allow, bits in parts if bits]
    lines[-1] = _annotate(lines[-1], new)
    yield from lines


def _annotate(line: Line, answer: Answer) -> Line:
    plain = singly(answer.bits).allowed

    def names(masks: int) -> tuple[str, ...]:
        return tuple(letters(mask) or EXISTS for mask in MASKS if masks >> mask & 1)

    return replace(
        line,
        passes=names(answer.allowed & ~plain),
        refuses=names(plain & ~answer.allowed & ~answer.unknown),
        unknown=names(answer.unknown),
    )
