# SPDX-License-Identifier: Apache-2.0
"""A program as text: one instruction a line, in the C-like notation of the kernel's own dumps.

Fields of the context are named, and a jump says where it leads.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuiso.devfilter import insn as op
from gpuiso.devfilter.helpers import HELPER_NAMES
from gpuiso.devfilter.insn import Insn, unpack
from gpuiso.devfilter.liveness import jump_targets
from gpuiso.devfilter.values import HelperNames

__all__ = ["listing"]

_OPERATORS = {
    op.ADD: "+=",
    op.SUB: "-=",
    op.MUL: "*=",
    op.DIV: "/=",
    op.OR: "|=",
    op.AND: "&=",
    op.LSH: "<<=",
    op.RSH: ">>=",
    op.MOD: "%=",
    op.XOR: "^=",
    op.MOV: "=",
    op.ARSH: "s>>=",
}
_COMPARISONS = {
    op.JEQ: "==",
    op.JGT: ">",
    op.JGE: ">=",
    op.JSET: "&",
    op.JNE: "!=",
    op.JSGT: "s>",
    op.JSGE: "s>=",
    op.JLT: "<",
    op.JLE: "<=",
    op.JSLT: "s<",
    op.JSLE: "s<=",
}
_FIELDS = {0: "access_type", 4: "major", 8: "minor"}


def listing(program: bytes | Sequence[Insn], *, helpers: HelperNames | None = None) -> str:
    """The whole program, with the number of each instruction and a mark (``>``) where jumps arrive.

    :raises Malformed: the bytes are no program.
    """
    insns = unpack(program) if isinstance(program, bytes) else tuple(program)
    targets = jump_targets(insns)
    lines, wide = [], False
    for pc, insn in enumerate(insns):
        if wide:
            wide = False
            continue
        wide = insn.code == op.LD_IMM64
        text = _wide(insn, insns[pc + 1]) if wide else _text(insn, pc, helpers)
        lines.append(f"{'>' if pc in targets else ' '}{pc:4}: {text}")
    return "\n".join(lines) + "\n"


def _text(insn: Insn, pc: int, helpers: HelperNames | None) -> str:
    kind, operation = insn.code & 7, insn.code & 0xF0
    if kind in (op.ALU, op.ALU64):
        return _arithmetic(insn, operation, "r" if kind == op.ALU64 else "w")
    if kind in (op.JMP, op.JMP32):
        return _jump(insn, operation, pc, helpers)
    if insn.code == op.NOSPEC:
        return "nospec"
    return _memory(insn)


def _arithmetic(insn: Insn, operation: int, letter: str) -> str:
    dst = f"{letter}{insn.dst}"
    source = f"{letter}{insn.src}" if insn.code & op.REG else _number(insn.imm)
    if operation == op.NEG:
        return f"{dst} = -{dst}"
    if operation == op.END:
        way = "bswap" if letter == "r" else "be" if insn.code & op.REG else "le"
        return f"r{insn.dst} = {way}{insn.imm} r{insn.dst}"
    if operation not in _OPERATORS:
        return _raw(insn)
    if operation == op.MOV and insn.off in (8, 16, 32):
        return f"{dst} = (s{insn.off}){source}"
    if operation == op.MOV and insn.off:
        return _raw(insn)
    return f"{dst} {'s' if insn.off else ''}{_OPERATORS[operation]} {source}"


def _jump(insn: Insn, operation: int, pc: int, helpers: HelperNames | None) -> str:
    wide = insn.code & 7 == op.JMP
    if operation == op.EXIT:
        return "exit"
    if operation == op.CALL:
        if insn.src == op.PSEUDO_CALL:
            return f"call {pc + 1 + (insn.off or insn.imm)}"
        name = HELPER_NAMES.get(insn.imm) if helpers is None else helpers(insn.imm)
        return f"call {name or f'unknown#{insn.imm}'}"
    if operation == op.JA and not insn.code & op.REG:
        return f"goto {pc + 1 + (insn.off if wide else insn.imm)}"
    if operation not in _COMPARISONS:
        return _raw(insn)
    letter = "r" if wide else "w"
    source = f"{letter}{insn.src}" if insn.code & op.REG else _number(insn.imm)
    return f"if {letter}{insn.dst} {_COMPARISONS[operation]} {source} goto {pc + 1 + insn.off}"


def _memory(insn: Insn) -> str:
    kind, mode = insn.code & 7, insn.code & 0xE0
    size = op.SIZES[insn.code & 0x18] * 8
    if kind == op.LDX and mode in (op.MEM, op.MEMSX):
        text = f"r{insn.dst} = *({'s' if mode == op.MEMSX else 'u'}{size} *)(r{insn.src} {insn.off:+})"
        # Only r1 can still be the context without following the program; makers load it first thing.
        field = _FIELDS.get(insn.off) if insn.src == 1 and size == 32 else None
        return f"{text}  ; {field}" if field else text
    target = f"*(u{size} *)(r{insn.dst} {insn.off:+})"
    if kind == op.STX and mode == op.MEM:
        return f"{target} = r{insn.src}"
    if kind == op.ST and mode == op.MEM:
        return f"{target} = {_number(insn.imm)}"
    if kind == op.STX and mode == op.ATOMIC:
        return f"atomic {target}, r{insn.src}, {insn.imm:#x}"
    return _raw(insn)


def _wide(insn: Insn, high: Insn) -> str:
    if insn.src == op.PSEUDO_MAP_FD:
        return f"r{insn.dst} = map[{insn.imm}]"
    if insn.src == op.PSEUDO_MAP_VALUE:
        return f"r{insn.dst} = map[{insn.imm}][0] {high.imm:+}"
    value = (insn.imm & 0xFFFF_FFFF) | (high.imm & 0xFFFF_FFFF) << 32
    return f"r{insn.dst} = {value:#x} ll"


def _number(value: int) -> str:
    return str(value) if -1024 < value < 65535 else f"{value & 0xFFFF_FFFF:#x}"


def _raw(insn: Insn) -> str:
    return f"unknown {insn.code:#04x} r{insn.dst} r{insn.src} {insn.off} {insn.imm}"
