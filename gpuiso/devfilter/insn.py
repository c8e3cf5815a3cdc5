# SPDX-License-Identifier: Apache-2.0
"""eBPF instructions: 8 bytes each, as BPF_PROG_LOAD takes them and as translated dumps hold them.

Field layout and opcode numbers are those of Documentation/bpf/standardization/instruction-set.rst
and include/uapi/linux/bpf.h, for little-endian machines.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

__all__ = [
    "ADD",
    "ALU",
    "ALU64",
    "AND",
    "ARSH",
    "ATOMIC",
    "CALL",
    "DIV",
    "END",
    "EXIT",
    "IMM",
    "JA",
    "JCOND",
    "JEQ",
    "JGE",
    "JGT",
    "JLE",
    "JLT",
    "JMP",
    "JMP32",
    "JNE",
    "JSET",
    "JSGE",
    "JSGT",
    "JSLE",
    "JSLT",
    "LD",
    "LDX",
    "LD_IMM64",
    "LSH",
    "MEM",
    "MEMSX",
    "MOD",
    "MOV",
    "MUL",
    "NEG",
    "NOSPEC",
    "OR",
    "PSEUDO_CALL",
    "PSEUDO_MAP_FD",
    "PSEUDO_MAP_VALUE",
    "REG",
    "REGISTERS",
    "RSH",
    "SIZES",
    "ST",
    "STX",
    "SUB",
    "XOR",
    "Insn",
    "Malformed",
    "pack",
    "unpack",
]

# Instruction classes: the low three bits of the code.
LD, LDX, ST, STX, ALU, JMP, JMP32, ALU64 = range(8)
# The source of an operation: a register instead of the immediate.
REG = 0x08
# Arithmetic: the high four bits of the code in ALU and ALU64.
ADD, SUB, MUL, DIV, OR, AND, LSH, RSH = (number << 4 for number in range(8))
NEG, MOD, XOR, MOV, ARSH, END = (number << 4 for number in range(8, 14))
# Jumps: the high four bits of the code in JMP and JMP32.
JA, JEQ, JGT, JGE, JSET, JNE, JSGT, JSGE = (number << 4 for number in range(8))
CALL, EXIT, JLT, JLE, JSLT, JSLE, JCOND = (number << 4 for number in range(8, 15))
# Memory: mode in the high three bits, size in the two below.
IMM, MEM, MEMSX, ATOMIC = 0x00, 0x60, 0x80, 0xC0
SIZES = {0x00: 4, 0x08: 2, 0x10: 1, 0x18: 8}
LD_IMM64 = LD | IMM | 0x18
# A speculation barrier that the verifier writes into programs (kernel-internal, include/linux/filter.h).
NOSPEC = ST | 0xC0
# What the source register of LD_IMM64 and CALL says about the immediate.
PSEUDO_MAP_FD, PSEUDO_MAP_VALUE, PSEUDO_CALL = 1, 2, 1

# r0 to r10, and one that only the kernel's own additions to a program use (BPF_REG_AX, include/linux/filter.h).
REGISTERS = 12

_INSN = struct.Struct("<BBhi")


class Malformed(ValueError):
    """Bytes that are no program: a ragged length, a register that does not exist, half a wide instruction."""


class Insn(NamedTuple):
    """One slot of a program. A 64-bit immediate takes two: the second has code 0 and the high half."""

    code: int
    dst: int = 0
    src: int = 0
    off: int = 0
    imm: int = 0


@lru_cache(maxsize=64)  # a program is asked many questions in a row
def unpack(program: bytes) -> tuple[Insn, ...]:
    """Split a program into instructions. :raises Malformed: it is none."""
    if len(program) % _INSN.size:
        raise Malformed(f"{len(program)} bytes are not a whole number of instructions")
    insns = tuple(
        Insn(code, registers & 0xF, registers >> 4, off, imm)
        for code, registers, off, imm in _INSN.iter_unpack(program)
    )
    _check(insns)
    return insns


def _check(insns: Sequence[Insn]) -> None:
    skip = False
    for index, insn in enumerate(insns):
        if max(insn.dst, insn.src) >= REGISTERS:
            raise Malformed(f"instruction {index}: there is no such register")
        if skip:
            skip = False
            continue
        if insn.code == LD_IMM64:
            if index + 1 == len(insns) or insns[index + 1].code:
                raise Malformed(f"instruction {index}: a 64-bit immediate lacks its second half")
            skip = True


def pack(insns: Iterable[Insn]) -> bytes:
    """The bytes of instructions. :raises Malformed: an offset or immediate does not fit its field."""
    out = bytearray()
    for index, insn in enumerate(insns):
        try:
            out += _INSN.pack(insn.code, insn.dst | insn.src << 4, insn.off, insn.imm)
        except struct.error as error:
            raise Malformed(f"instruction {index}: {error}") from None
    return bytes(out)
