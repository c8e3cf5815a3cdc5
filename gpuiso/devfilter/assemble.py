# SPDX-License-Identifier: Apache-2.0
"""Put instructions with labels together into a program. Jumps only lead forwards."""

from __future__ import annotations

from collections.abc import Hashable

from gpuiso.devfilter import insn as op
from gpuiso.devfilter.insn import Insn

__all__ = ["Assembler", "TooLarge"]

_FARTHEST = (1 << 15) - 1
_GOTO = Insn(op.JMP | op.JA)
_PAIRS = ((op.JEQ, op.JNE), (op.JGT, op.JLE), (op.JGE, op.JLT))
_OPPOSITE = {op.JMP | a: op.JMP | b for pair in _PAIRS for a, b in (pair, pair[::-1])}


class TooLarge(ValueError):
    """A jump is farther than an instruction can say (32,767 instructions)."""


class Assembler:
    """Collects instructions in order; a label may be jumped to before it is placed."""

    def __init__(self) -> None:
        self._insns: list[tuple[Insn, Hashable | None]] = []
        self._labels: dict[Hashable, int] = {}
        self._arrivals: set[int] = set()

    def add(self, insn: Insn, to: Hashable | None = None) -> None:
        """Append an instruction; a jump goes to the label ``to``."""
        self._insns.append((insn, to))

    def goto(self, to: Hashable) -> None:
        """Append a jump that is always taken."""
        self.add(_GOTO, to)

    def place(self, label: Hashable) -> None:
        """The next instruction is where ``label`` is.

        A jump just before it that leads here is dropped, and a condition that only skips such a jump
        is turned round.
        """
        here = len(self._insns)
        if here not in self._arrivals:
            if self._insns[-1:] == [(_GOTO, label)]:
                self._insns.pop()
            elif self._skips_a_goto(label):
                condition, _ = self._insns[-2]
                _, otherwise = self._insns.pop()
                self._insns[-1] = (condition._replace(code=_OPPOSITE[condition.code]), otherwise)
        self._labels[label] = len(self._insns)
        self._arrivals.add(len(self._insns))

    def _skips_a_goto(self, label: Hashable) -> bool:
        """Whether the last two instructions are a condition that leads to ``label`` and a goto."""
        if len(self._insns) < 2 or len(self._insns) - 1 in self._arrivals:
            return False
        (condition, to), (last, _) = self._insns[-2:]
        return condition.code in _OPPOSITE and to == label and last == _GOTO

    def assemble(self) -> tuple[Insn, ...]:
        """The program. :raises TooLarge: a jump is too far."""
        program = []
        for index, (insn, to) in enumerate(self._insns):
            if to is None:
                program.append(insn)
                continue
            distance = self._labels[to] - index - 1
            if not 0 <= distance <= _FARTHEST:
                raise TooLarge(f"a jump over {distance} instructions, of {_FARTHEST} that are possible")
            program.append(insn._replace(off=distance))
        return tuple(program)
