# SPDX-License-Identifier: Apache-2.0
"""Which registers still matter at an instruction.

Paths through a program meet again with different leftovers in registers that nobody reads; seeing
that they do not matter lets exploration go on once instead of once a path.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuiso.devfilter import insn as op
from gpuiso.devfilter.insn import Insn

__all__ = ["jump_targets", "live_registers"]

_ALL = (1 << op.REGISTERS) - 1
_ARGUMENTS = 0b111110
_CALLER_SAVED = 0b111111


def _target(insn: Insn, pc: int) -> int | None:
    """Where a jump leads if it is taken; None for anything else."""
    kind, operation = insn.code & 7, insn.code & 0xF0
    if kind not in (op.JMP, op.JMP32) or operation in (op.CALL, op.EXIT):
        return None
    return pc + 1 + (insn.imm if kind == op.JMP32 and operation == op.JA else insn.off)


def jump_targets(program: Sequence[Insn]) -> frozenset[int]:
    """The instructions that a jump leads to."""
    targets = (_target(insn, pc) for pc, insn in enumerate(program))
    return frozenset(target for target in targets if target is not None)


def _uses_and_defines(insn: Insn) -> tuple[int, int]:
    kind, operation = insn.code & 7, insn.code & 0xF0
    dst, src = 1 << insn.dst, 1 << insn.src
    if kind in (op.ALU, op.ALU64):
        uses = src if insn.code & op.REG and operation != op.END else 0
        return (uses if operation == op.MOV else uses | dst), dst
    if kind in (op.JMP, op.JMP32):
        if operation == op.EXIT:
            return 1, 0
        if operation == op.CALL:
            return (_ALL, 0) if insn.src == op.PSEUDO_CALL else (_ARGUMENTS, _CALLER_SAVED)
        if operation == op.JA:
            return 0, 0
        return dst | (src if insn.code & op.REG else 0), 0
    if kind == op.LDX:
        return src, dst
    if kind == op.LD:
        return 0, dst
    # A store; atomic ones may also read and write r0 and the source.
    return dst | src | 1, 0


def live_registers(program: Sequence[Insn]) -> list[int]:
    """For each instruction a bit set of the registers that are read later before they are written.

    In a program with functions of its own every register counts at a return.
    """
    has_functions = any(insn.code & ~op.REG == op.JMP | op.CALL and insn.src == op.PSEUDO_CALL for insn in program)
    live = [0] * (len(program) + 1)
    changed = True
    while changed:
        changed = False
        for pc in range(len(program) - 1, -1, -1):
            insn = program[pc]
            uses, defines = _uses_and_defines(insn)
            operation = insn.code & 0xF0
            after = live[pc + 1]
            if insn.code & 7 in (op.JMP, op.JMP32):
                target = _target(insn, pc)
                if operation == op.EXIT:
                    after = _ALL if has_functions else 0
                elif operation == op.JA:
                    after = 0
                if target is not None and 0 <= target < len(program):
                    after |= live[target]
            now = uses | (after & ~defines)
            if now != live[pc]:
                live[pc] = now
                changed = True
    return live
