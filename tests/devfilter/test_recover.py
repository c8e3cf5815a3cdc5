# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import random
from itertools import product

import pytest

from gpuiso.devfilter import insn as op
from gpuiso.devfilter.insn import Insn, Malformed, pack
from gpuiso.devfilter.interpret import Access, interpret
from gpuiso.devfilter.recover import recover
from gpuiso.devfilter.table import MASKS
from gpuiso.policy.rule import DeviceType, Rule, mask
from tests.devfilter.layouts import LAYOUTS, MAJORS, MINORS, random_rules

TYPES: tuple[DeviceType, ...] = ("b", "c")
GRID = [
    Access(device, major, minor, asked)
    for device, major, minor, asked in product(TYPES, (*MAJORS, 2, 4095), (*MINORS, 2, 1048575), MASKS)
]
EXIT = Insn(op.JMP | op.EXIT)


def lines(program: list[Insn]) -> list[str]:
    return [str(line) for line in recover(pack(program)).lines]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_recovered_rules_answer_as_the_program_does(layout: str) -> None:
    source = random.Random(layout)
    for _ in range(25):
        program = pack(LAYOUTS[layout](random_rules(source, source.randint(0, 12))))
        recovered = recover(program)
        for access in source.sample(GRID, 60):
            verdict, expected = recovered.verdict(access), interpret(program, access)
            assert verdict.value == expected.value, (access, [str(line) for line in recovered.lines])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_lines_say_what_the_table_says(layout: str) -> None:
    """Applying the lines in order, later ones winning bit by bit, gives every answer that is exact."""
    source = random.Random(layout)
    for _ in range(25):
        recovered = recover(pack(LAYOUTS[layout](random_rules(source, source.randint(0, 12)))))
        for access in source.sample(GRID, 60):
            allowed, last = 0, None
            for line in recovered.lines:
                if line.matches(access):
                    bits, last = mask(line.access), line
                    allowed = allowed | bits if line.allow else allowed & ~bits
            assert last is not None
            expected = bool(allowed) if not access.mask else access.mask & ~allowed == 0
            named = access.mask in {mask(m) if m != "F_OK" else 0 for m in (*last.passes, *last.refuses)}
            assert recovered.verdict(access).value == ("allow" if expected != named else "deny"), access


RULES = [
    Rule(False, "a", None, None, "rwm"),
    Rule(True, "c", 1, 3, "rwm"),
    Rule(True, "c", 195, 0, "rw"),
    Rule(True, "c", 195, 1, "rw"),
    Rule(True, "c", 136, None, "rw"),
    Rule(True, "b", None, None, "m"),
]


@pytest.mark.parametrize("layout", ["runc", "crun", "systemd"])
def test_same_answers_give_the_same_lines_in_every_layout(layout: str) -> None:
    assert lines(LAYOUTS[layout](RULES)) == [
        "deny a *:* rwm",
        "allow b *:* m",
        "allow c 1:3 rwm",
        "allow c 136:* rw",
        "allow c 195:0-1 rw",
    ]


def test_a_deny_list_names_what_it_denies_and_what_slips_through() -> None:
    rules = [Rule(True, "a", None, None, "rwm"), Rule(False, "c", 1, 3, "w"), Rule(False, "c", 195, None, "rwm")]
    recovered = recover(pack(LAYOUTS["runc"](rules)))
    assert [str(line) for line in recovered.lines] == [
        "allow a *:* rwm",
        "deny c 1:3 w (lets pass rw; refuses F_OK)",
        "deny c 195:* rwm",
    ]
    assert recovered.default_allow
    assert not recovered.exact
    assert recovered.verdict(Access("c", 1, 3, mask("rw"))).value == "allow"
    denial = recovered.verdict(Access("c", 195, 7, mask("r")))
    assert (denial.value, denial.why) == ("deny", "deny c 195:* rwm")


def test_rules_for_one_bit_each_do_not_add_up_in_cruns_layout() -> None:
    rules = [Rule(True, "c", 1, 11, "r"), Rule(True, "c", 1, 11, "w")]
    assert lines(LAYOUTS["crun"](rules)) == ["deny a *:* rwm", "allow c 1:11 rw (refuses rw)"]


def test_an_exception_inside_a_wildcard() -> None:
    rules = [Rule(True, "c", 195, None, "rwm"), Rule(False, "c", 195, 3, "rwm"), Rule(True, "c", None, 9, "r")]
    assert lines(LAYOUTS["crun"](rules)) == [
        "deny a *:* rwm",
        "allow c *:9 r",
        "allow c 195:* rwm",
        "deny c 195:3 rwm",
    ]


def test_ranges_and_arithmetic_on_device_numbers() -> None:
    """What a compiler makes of ``major == 195 && minor - 5 < 3u || major << 8 == 0x100``."""
    program = [
        Insn(op.LDX | op.MEM, 4, 1, 4),
        Insn(op.LDX | op.MEM, 5, 1, 8),
        Insn(op.ALU64 | op.MOV, 0, imm=1),
        Insn(op.JMP | op.JNE, 4, off=2, imm=195),
        Insn(op.ALU64 | op.ADD, 5, imm=-5),
        Insn(op.JMP | op.JLT, 5, off=3, imm=3),
        Insn(op.ALU64 | op.LSH, 4, imm=8),
        Insn(op.JMP | op.JEQ, 4, off=1, imm=0x100),
        Insn(op.ALU64 | op.MOV, 0, imm=0),
        EXIT,
    ]
    assert lines(program) == [
        "deny a *:* rwm",
        "allow b 1:* rwm",
        "allow b 195:5-7 rwm",
        "allow c 1:* rwm",
        "allow c 195:5-7 rwm",
    ]


def test_an_answer_that_depends_on_the_time_is_unknown_and_the_rest_is_not() -> None:
    program = [
        Insn(op.LDX | op.MEM, 6, 1, 4),
        Insn(op.ALU64 | op.MOV, 7, imm=1),
        Insn(op.JMP | op.JNE, 6, off=3, imm=195),
        Insn(op.JMP | op.CALL, imm=5),
        Insn(op.JMP | op.JNE, 0, off=1, imm=7),
        Insn(op.ALU64 | op.MOV, 7, imm=0),
        Insn(op.ALU64 | op.MOV | op.REG, 0, 7),
        EXIT,
    ]
    recovered = recover(pack(program))
    assert recovered.reasons == ("it depends on bpf_ktime_get_ns",)
    assert recovered.verdict(Access("c", 195, 0, mask("rw"))).value == "unknown"
    assert recovered.verdict(Access("c", 1, 3, mask("rw"))).value == "allow"
    assert str(recovered.lines[-1]) == "deny c 195:* rwm (unknown for F_OK, m, r, w, rw)"


def test_no_program_has_no_rules() -> None:
    with pytest.raises(Malformed):
        recover(b"")
    with pytest.raises(Malformed):
        recover(b"123")


def test_a_program_that_computes_too_much_is_unknown_not_endless() -> None:
    """Doubling a register doubles the expression; comparing it over and over costs steps."""
    program = [Insn(op.LDX | op.MEM, 6, 1, 8), Insn(op.ALU64 | op.MOV, 0, imm=1)]
    program += [Insn(op.ALU64 | op.ADD | op.REG, 6, 6)] * 60
    program += [Insn(op.JMP | op.JSET, 6, off=1, imm=4096), Insn(op.ALU64 | op.MOV, 0, imm=0), EXIT]
    recovered = recover(pack(program))
    assert recovered.reasons == ("it computes more with device numbers than is followed",)
    assert recovered.verdict(Access("c", 195, 0, 6)).value == "unknown"
    assert interpret(program, Access("c", 195, 0, 6)).value == "deny"


def test_a_program_of_costly_comparisons_runs_out_of_steps() -> None:
    program = [Insn(op.LDX | op.MEM, 6, 1, 4), Insn(op.ALU64 | op.MOV, 0, imm=0)]
    for number in range(400):
        program += [
            Insn(op.ALU64 | op.MOV | op.REG, 7, 6),
            Insn(op.ALU64 | op.MUL, 7, imm=2 * number + 3),
            Insn(op.JMP | op.JSET, 7, off=1, imm=1 << number % 12),
            Insn(op.ALU64 | op.XOR, 0, imm=1),
        ]
    recovered = recover(pack([*program, EXIT]))
    assert recovered.reasons == ("it was still running when the steps granted to it were used up",)
