# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from gpuiso.devfilter import insn as op
from gpuiso.devfilter.insn import Insn, pack
from gpuiso.devfilter.interpret import Access, Verdict, interpret

ACCESS = Access("c", 195, 7, 6)
MOV, ADD = op.ALU64 | op.MOV, op.ALU64 | op.ADD
LDX_W, LDX_B, STX_DW = op.LDX | op.MEM, op.LDX | op.MEM | 0x10, op.STX | op.MEM | 0x18
LDX_DW = op.LDX | op.MEM | 0x18
EXIT = Insn(op.JMP | op.EXIT)


def run(*insns: Insn, max_steps: int = 1000) -> Verdict:
    return interpret(pack(insns), ACCESS, max_steps=max_steps)


def returned(*insns: Insn) -> str:
    """The verdict of a program that goes on with what these leave in r0."""
    return run(*insns, EXIT).value


def test_access_as_the_context_holds_it() -> None:
    assert ACCESS.type_word == 0x60002
    assert Access("b", 8, 0, 1).type_word == 0x10001
    assert [str(access) for access in (ACCESS, Access("b", 8, 0, 0))] == ["c 195:7 rw", "b 8:0 F_OK"]
    assert Access("c", 1, 3, 7).as_asked() == (Access("c", 1, 3, 1), Access("c", 1, 3, 6))
    assert ACCESS.as_asked() == (ACCESS,)


@pytest.mark.parametrize(
    ("code", "offset", "value"),
    [(LDX_W, 0, 0x60002), (LDX_B, 0, 2), (LDX_B, 2, 6), (op.LDX | op.MEM | 0x08, 2, 6), (LDX_W, 4, 195), (LDX_W, 8, 7)],
)
def test_reading_the_context(code: int, offset: int, value: int) -> None:
    test = (Insn(code, 6, 1, offset), Insn(MOV, 0, imm=1), Insn(op.JMP | op.JEQ, 6, off=1, imm=value), Insn(MOV, 0))
    assert returned(*test) == "allow"


def test_only_the_low_half_of_the_answer_counts() -> None:
    assert returned(Insn(op.LD_IMM64, 0), Insn(0, imm=1)) == "deny"
    assert returned(Insn(op.LD_IMM64, 0, imm=2), Insn(0)) == "allow"


def test_values_survive_the_stack() -> None:
    spill = (Insn(LDX_W, 6, 1, 4), Insn(STX_DW, 10, 6, -8), Insn(LDX_B, 0, 10, -8), Insn(ADD, 0, imm=-195))
    assert returned(*spill) == "deny"
    context = (Insn(STX_DW, 10, 1, -8), Insn(LDX_DW, 2, 10, -8), Insn(LDX_W, 0, 2, 8), Insn(ADD, 0, imm=-7))
    assert returned(*context) == "deny"


@pytest.mark.parametrize(
    ("insns", "why"),
    [
        ((Insn(MOV | op.REG, 0, 3),), "a register was read before it was written"),
        ((Insn(LDX_W, 0, 10, -8),), "it reads stack that it did not write"),
        ((Insn(LDX_W, 0, 1, 12),), "it reads 4 bytes at 12 of the context, where nothing is defined"),
        ((Insn(MOV, 2, imm=64), Insn(LDX_W, 0, 2)), "it reads from an address that is a number"),
        ((Insn(STX_DW, 10, 1, -8), Insn(LDX_W, 0, 10, -8)), "it reads back a part of a stored value"),
        ((Insn(op.JMP | op.CALL, imm=5),), "it depends on bpf_ktime_get_ns"),
        ((Insn(op.JMP | op.CALL, imm=4242),), "it calls a function that could not be named"),
        ((Insn(op.JMP | op.CALL, imm=12),), "it goes on in another program"),
        ((Insn(op.JMP | op.CALL, imm=187),), "it sets the result of the system call itself"),
        ((Insn(0xFF),), "opcode 0xff is not known"),
        ((Insn(op.JMP | op.JCOND),), "opcode 0xe5 is not known"),
        ((Insn(MOV | op.REG, 0, 3, off=-1),), "opcode 0xbf is not known"),
        ((Insn(op.JMP | op.JA, off=100),), "it runs off its end at instruction 101"),
        ((Insn(op.JMP | op.JA, off=-1),), "it was still running when the steps granted to it were used up"),
        ((Insn(op.JMP | op.CALL, src=1, imm=-1),), "its functions call each other deeper than the kernel allows"),
    ],
)
def test_what_cannot_be_known(insns: tuple[Insn, ...], why: str) -> None:
    assert run(*insns, EXIT) == Verdict("unknown", why)


def test_bytes_that_are_no_program() -> None:
    assert interpret(b"123", ACCESS) == Verdict("unknown", "3 bytes are not a whole number of instructions")
    assert interpret(b"", ACCESS) == Verdict("unknown", "it runs off its end at instruction 0")


def test_both_ways_of_an_unknown_jump_are_followed() -> None:
    def coin(heads: int, tails: int) -> Verdict:
        return run(
            Insn(op.JMP | op.CALL, imm=7),
            Insn(op.JMP | op.JGT, 0, off=2, imm=100),
            Insn(MOV, 0, imm=heads),
            EXIT,
            Insn(MOV, 0, imm=tails),
            EXIT,
        )

    assert coin(1, 1).value == "allow"
    assert coin(0, 0).value == "deny"
    assert coin(0, 1) == Verdict("unknown", "it depends on bpf_get_prandom_u32")


def test_a_helper_may_write_to_the_stack_it_is_given() -> None:
    insns = (
        Insn(MOV, 6, imm=1),
        Insn(STX_DW, 10, 6, -16),
        Insn(MOV | op.REG, 1, 10),
        Insn(ADD, 1, imm=-16),
        Insn(MOV, 2, imm=16),
        Insn(op.JMP | op.CALL, imm=16),
        Insn(LDX_DW, 0, 10, -16),
    )
    assert run(*insns, EXIT) == Verdict("unknown", "bpf_get_current_comm may have written to the stack")


def test_a_counted_loop() -> None:
    insns = (
        Insn(MOV, 0, imm=0),
        Insn(MOV, 6, imm=50),
        Insn(ADD, 0, imm=3),
        Insn(ADD, 6, imm=-1),
        Insn(op.JMP | op.JNE, 6, off=-3, imm=0),
        Insn(ADD, 0, imm=-150),
    )
    assert returned(*insns) == "deny"


def test_atomic_operations_are_not_followed() -> None:
    counter = (
        Insn(MOV, 0, imm=1),
        Insn(STX_DW, 10, 0, -8),
        Insn(op.STX | op.ATOMIC | 0x18, 10, 0, -8, 0x01),
    )
    assert returned(*counter, Insn(MOV, 0, imm=1)) == "allow"
    assert run(*counter, Insn(LDX_DW, 0, 10, -8), EXIT).why == "it depends on an atomic operation"
