# SPDX-License-Identifier: Apache-2.0
"""The rules that a program amounts to.

Whatever a program looks like, what it answers is a function of device and access: found by following
all its paths (explore), laid out as a table (table), written down as lines (normalform). Two programs
with the same answers give the same lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from gpuiso.devfilter.explore import explore
from gpuiso.devfilter.insn import Insn, Malformed, unpack
from gpuiso.devfilter.interpret import Access, Verdict
from gpuiso.devfilter.normalform import EXISTS, Line, normal_form
from gpuiso.devfilter.table import MASKS, Table, lay_out
from gpuiso.devfilter.values import HelperNames, Maps
from gpuiso.policy.rule import DeviceType, letters

__all__ = ["Recovered", "recover"]


@dataclass(frozen=True)
class Recovered:
    """The rules of a program. ``reasons`` say why some answers are unknown; empty if none is."""

    lines: tuple[Line, ...]
    reasons: tuple[str, ...]
    tables: dict[DeviceType, Table]

    @property
    def default_allow(self) -> bool:
        """Whether the program is a deny-list: what it does not mention is allowed."""
        return self.lines[0].allow

    @property
    def exact(self) -> bool:
        """Whether the lines, decided bit by bit, say all there is to say."""
        return all(line.exact for line in self.lines)

    def verdict(self, access: Access) -> Verdict:
        """What the program answers, and the line it is by; all of ``access.as_asked()`` must be allowed."""
        verdicts = [self._verdict(asked) for asked in access.as_asked()]
        return min(verdicts, key=lambda verdict: ("deny", "unknown", "allow").index(verdict.value))

    def _verdict(self, access: Access) -> Verdict:
        answer = next(
            answer
            for low, high, cells in self.tables[access.type]
            if low <= access.major <= high
            for first, last, answer in cells
            if first <= access.minor <= last
        )
        if answer.unknown >> access.mask & 1:
            return Verdict("unknown", "; ".join(self.reasons))
        allowed = bool(answer.allowed >> access.mask & 1)
        return Verdict("allow" if allowed else "deny", str(self.line(access, allowed)))

    def line(self, access: Access, allowed: bool) -> Line:
        """The line that decides: for a denial the last that denies a bit that was asked for."""
        matching = [line for line in self.lines if line.matches(access)]
        if (letters(access.mask) or EXISTS) in (*matching[-1].passes, *matching[-1].refuses):
            return matching[-1]
        for line in reversed(matching):
            if line.allow == allowed and _overlaps(line, access.mask):
                return line
        return matching[-1]


def _overlaps(line: Line, mask: int) -> bool:
    return not mask or any(letter in line.access for letter in letters(mask))


def recover(
    program: bytes | Sequence[Insn], *, maps: Maps | None = None, helpers: HelperNames | None = None
) -> Recovered:
    """The rules of ``program``, loaded or as a translated dump shows it.

    :raises Malformed: the bytes are no program.
    """
    if maps is None and helpers is None and isinstance(program, bytes):
        return _recover_bytes(program)
    return _recover(unpack(program) if isinstance(program, bytes) else program, maps, helpers)


@lru_cache(maxsize=256)
def _recover_bytes(program: bytes) -> Recovered:
    return _recover(unpack(program), None, None)


def _recover(program: Sequence[Insn], maps: Maps | None, helpers: HelperNames | None) -> Recovered:
    if not program:
        raise Malformed("an empty program")
    answers = explore(program, MASKS, maps=maps, helpers=helpers)
    tables: dict[DeviceType, Table] = {
        device: lay_out([answers[device, mask] for mask in MASKS]) for device in ("b", "c")
    }
    reasons = dict.fromkeys(reason for answer in answers.values() for reason in answer.reasons)
    doubted = any(cell[2].unknown for table in tables.values() for row in table for cell in row[2])
    return Recovered(tuple(normal_form(tables)), tuple(reasons) if doubted else (), tables)
