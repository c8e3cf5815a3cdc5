# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from gpuiso.devfilter import insn as op
from gpuiso.devfilter.decode import listing
from gpuiso.devfilter.insn import Insn, Malformed, pack, unpack
from gpuiso.policy.parse import parse_rules
from tests.devfilter.layouts import systemd


def test_a_program_of_systemd() -> None:
    assert listing(pack(systemd(parse_rules("allow c 195:0 rw")))) == (
        "    0: r2 = *(u32 *)(r1 +0)  ; access_type\n"
        "    1: w2 &= 0xffff\n"
        "    2: r3 = *(u32 *)(r1 +0)  ; access_type\n"
        "    3: w3 >>= 16\n"
        "    4: r4 = *(u32 *)(r1 +4)  ; major\n"
        "    5: r5 = *(u32 *)(r1 +8)  ; minor\n"
        "    6: w1 = w3\n"
        "    7: w1 &= 6\n"
        "    8: if r1 != r3 goto 13\n"
        "    9: if r2 != 2 goto 13\n"
        "   10: if r4 != 195 goto 13\n"
        "   11: if r5 != 0 goto 13\n"
        "   12: goto 15\n"
        ">  13: r0 = 0\n"
        "   14: goto 16\n"
        ">  15: r0 = 1\n"
        ">  16: exit\n"
    )


@pytest.mark.parametrize(
    ("insn", "text"),
    [
        (Insn(op.ALU64 | op.NEG, 3), "r3 = -r3"),
        (Insn(op.ALU | op.DIV | op.REG, 3, 4, 1), "w3 s/= w4"),
        (Insn(op.ALU64 | op.MOV | op.REG, 3, 4, 8), "r3 = (s8)r4"),
        (Insn(op.ALU64 | op.ARSH, 3, imm=7), "r3 s>>= 7"),
        (Insn(op.ALU | op.END | op.REG, 3, imm=16), "r3 = be16 r3"),
        (Insn(op.ALU64 | op.END, 3, imm=32), "r3 = bswap32 r3"),
        (Insn(op.JMP32 | op.JSLT | op.REG, 3, 4, 5), "if w3 s< w4 goto 6"),
        (Insn(op.JMP32 | op.JA, imm=70000), "goto 70001"),
        (Insn(op.JMP | op.CALL, imm=14), "call bpf_get_current_pid_tgid"),
        (Insn(op.JMP | op.CALL, imm=330864), "call unknown#330864"),
        (Insn(op.JMP | op.CALL, src=1, off=4, imm=1), "call 5"),
        (Insn(op.LDX | op.MEM | 0x10, 3, 10, -4), "r3 = *(u8 *)(r10 -4)"),
        (Insn(op.LDX | op.MEMSX | 0x08, 3, 10, -4), "r3 = *(s16 *)(r10 -4)"),
        (Insn(op.STX | op.MEM | 0x18, 10, 3, -8), "*(u64 *)(r10 -8) = r3"),
        (Insn(op.ST | op.MEM, 10, 0, -8, 1), "*(u32 *)(r10 -8) = 1"),
        (Insn(op.STX | op.ATOMIC, 10, 3, -8, 1), "atomic *(u32 *)(r10 -8), r3, 0x1"),
        (Insn(op.NOSPEC), "nospec"),
        (Insn(op.ALU64 | op.AND, 3, imm=-65536), "r3 &= 0xffff0000"),
        (Insn(0xFF, 1, 2, 3, 4), "unknown 0xff r1 r2 3 4"),
    ],
)
def test_each_kind_of_instruction(insn: Insn, text: str) -> None:
    assert listing([insn]) == f"    0: {text}\n"


def test_wide_immediates_take_one_line() -> None:
    program = [
        Insn(op.LD_IMM64, 1, imm=-1),
        Insn(0, imm=1),
        Insn(op.LD_IMM64, 1, 1, imm=7),
        Insn(0),
        Insn(op.LD_IMM64, 1, 2, imm=7),
        Insn(0, imm=4),
    ]
    assert listing(program).splitlines() == [
        "    0: r1 = 0x1ffffffff ll",
        "    2: r1 = map[7]",
        "    4: r1 = map[7][0] +4",
    ]


def test_helpers_are_named_by_who_knows() -> None:
    assert listing([Insn(op.JMP | op.CALL, imm=330864)], helpers={330864: "__htab_map_lookup_elem"}.get) == (
        "    0: call __htab_map_lookup_elem\n"
    )


def test_bytes_and_instructions_are_the_same_thing() -> None:
    program = [Insn(op.ALU64 | op.MOV, 10, 9, -32768, -2147483648), Insn(op.JMP | op.EXIT)]
    assert unpack(pack(program)) == tuple(program)


@pytest.mark.parametrize(
    "program", [b"1234567", pack([Insn(op.LD_IMM64)]), pack([Insn(op.LD_IMM64), Insn(op.JMP | op.EXIT)])]
)
def test_what_is_no_program(program: bytes) -> None:
    with pytest.raises(Malformed):
        unpack(program)


def test_a_field_too_small_for_its_number() -> None:
    with pytest.raises(Malformed, match="instruction 0"):
        pack([Insn(op.JMP | op.JA, off=40000)])
