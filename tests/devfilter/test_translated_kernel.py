# SPDX-License-Identifier: Apache-2.0
"""Programs beyond what rule lists need, as the running kernel translates and answers them."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from gpuiso.devfilter import insn as op
from gpuiso.devfilter.insn import Insn, pack
from gpuiso.devfilter.interpret import Access, interpret
from gpuiso.devfilter.recover import recover
from gpuiso.devfilter.table import MASKS
from gpuiso.host.bpf_maps import _functions, open_map
from gpuiso.kernel import bpf
from gpuiso.policy.rule import DeviceType
from tests.devfilter.asking import asking, attached
from tests.kernel.maps import ARRAY, HASH, map_create, map_update
from tests.tiers import requires

pytestmark = requires("kernel")

TYPES: tuple[DeviceType, ...] = ("b", "c")
GRID = [Access(*access) for access in product(TYPES, (1, 5, 195), (0, 1, 3, 255, 1048575), MASKS)]

LDX_W, LDX_DW = op.LDX | op.MEM, op.LDX | op.MEM | 0x18
ST_W, STX_W, STX_DW = op.ST | op.MEM, op.STX | op.MEM, op.STX | op.MEM | 0x18
MOV, ADD = op.ALU64 | op.MOV, op.ALU64 | op.ADD
CALL, EXIT = op.JMP | op.CALL, Insn(op.JMP | op.EXIT)
LOOKUP = Insn(CALL, imm=1)


@pytest.fixture(scope="module")
def kernel_symbols() -> dict[int, str]:
    """Kernel functions by their distance from what CALL counts from."""
    found = _functions()
    if not found:
        pytest.skip("the kernel hides its addresses")
    return found


@pytest.fixture
def array_fd() -> Iterator[int]:
    fd = map_create(ARRAY, key_size=4, value_size=12, max_entries=300)
    for index in (0, 3, 255):
        map_update(fd, index.to_bytes(4, "little"), b"\1".ljust(12, b"\0"))
    yield fd
    os.close(fd)


@pytest.fixture
def hash_fd() -> Iterator[int]:
    fd = map_create(HASH, key_size=8, value_size=4, max_entries=8)
    for major, minor in ((1, 3), (195, 0), (195, 255)):
        map_update(fd, major.to_bytes(4, "little") + minor.to_bytes(4, "little"), b"\1\0\0\0")
    map_update(fd, (195).to_bytes(4, "little") + (1).to_bytes(4, "little"), b"\0\0\0\0")
    yield fd
    os.close(fd)


def load_map(register: int, fd: int, *, value_at: int | None = None) -> list[Insn]:
    source = op.PSEUDO_MAP_FD if value_at is None else op.PSEUDO_MAP_VALUE
    return [Insn(op.LD_IMM64, register, source, imm=fd), Insn(0, imm=value_at or 0)]


def lookup(fd: int, key_at: int) -> list[Insn]:
    """Look up (major, minor), or the minor alone, and answer with the first byte of what is found."""
    return [
        Insn(LDX_W, 6, 1, 4),
        Insn(LDX_W, 7, 1, 8),
        Insn(STX_W, 10, 6, -8),
        Insn(STX_W, 10, 7, -4),
        *load_map(1, fd),
        Insn(MOV | op.REG, 2, 10),
        Insn(ADD, 2, imm=key_at),
        LOOKUP,
        Insn(op.JMP | op.JEQ, 0, off=2, imm=0),
        Insn(LDX_W, 0, 0),
        Insn(op.ALU64 | op.AND, 0, imm=1),
        EXIT,
    ]


def compare(cgroup: Path, program: list[Insn], symbols: dict[int, str]) -> tuple[set[str], bytes]:
    """Assert that the interpreter answers as the kernel; returns the answers met and the dump."""
    with asking(GRID, cgroup=cgroup) as ask, attached(cgroup, pack(program)) as dump:
        met = ["allow" if allowed else "deny" for allowed in ask()]
        said = [interpret(dump, access, maps=open_map, helpers=symbols.get).value for access in GRID]
    assert said == met
    return set(met), dump


def test_an_array_map(tmp_cgroup: Path, array_fd: int, kernel_symbols: dict[int, str]) -> None:
    answers, dump = compare(tmp_cgroup, lookup(array_fd, -4), kernel_symbols)
    assert answers == {"allow", "deny"}
    # Without the map nothing can be said, and that is said.
    verdict = interpret(dump, GRID[0], helpers=kernel_symbols.get)
    assert verdict.value == "unknown"
    assert "could not be read" in verdict.why


def test_a_hash_map(tmp_cgroup: Path, hash_fd: int, kernel_symbols: dict[int, str]) -> None:
    answers, dump = compare(tmp_cgroup, lookup(hash_fd, -8), kernel_symbols)
    assert answers == {"allow", "deny"}
    verdict = interpret(dump, GRID[0], maps=open_map, helpers=lambda _: None)
    assert (verdict.value, verdict.why) == ("unknown", "it calls a function that could not be named")


def test_global_data(tmp_cgroup: Path, kernel_symbols: dict[int, str]) -> None:
    fd = map_create(ARRAY, key_size=4, value_size=16, max_entries=1)
    map_update(fd, bytes(4), (7).to_bytes(8, "little") + (195).to_bytes(8, "little"))
    program = [
        Insn(LDX_W, 6, 1, 4),
        *load_map(2, fd, value_at=4),
        Insn(LDX_W, 3, 2, 4),
        Insn(MOV, 0, imm=0),
        Insn(op.JMP | op.JNE | op.REG, 6, 3, 1),
        Insn(MOV, 0, imm=1),
        EXIT,
    ]
    assert compare(tmp_cgroup, program, kernel_symbols)[0] == {"allow", "deny"}
    os.close(fd)


def test_functions_of_its_own(tmp_cgroup: Path, kernel_symbols: dict[int, str]) -> None:
    """f(x) = x & 1, called twice, with a register that the callee uses too."""
    program = [
        Insn(LDX_W, 6, 1, 8),
        Insn(LDX_W, 1, 1, 4),
        Insn(CALL, src=op.PSEUDO_CALL, imm=5),
        Insn(MOV | op.REG, 7, 0),
        Insn(MOV | op.REG, 1, 6),
        Insn(CALL, src=op.PSEUDO_CALL, imm=2),
        Insn(op.ALU64 | op.XOR | op.REG, 0, 7),
        EXIT,
        Insn(MOV, 0, imm=0),
        Insn(MOV | op.REG, 6, 1),
        Insn(STX_DW, 10, 6, -8),
        Insn(LDX_DW, 0, 10, -8),
        Insn(op.ALU64 | op.AND, 0, imm=1),
        EXIT,
    ]
    answers, dump = compare(tmp_cgroup, program, kernel_symbols)
    assert answers == {"allow", "deny"}
    # Odd minors of even majors and the other way round: no way to write it down, and it says so.
    recovered = recover(dump)
    assert recovered.verdict(GRID[0]).value == "unknown"
    assert recovered.reasons == ("it computes its answer in a way that is not followed",)


def test_helpers_make_an_answer_unknown_only_where_it_depends_on_them(
    tmp_cgroup: Path, kernel_symbols: dict[int, str]
) -> None:
    program = [
        Insn(LDX_W, 6, 1, 4),
        Insn(CALL, imm=14),
        Insn(op.ALU64 | op.RSH, 0, imm=32),
        Insn(op.JMP | op.JEQ, 6, off=2, imm=195),
        Insn(MOV, 0, imm=1),
        EXIT,
        Insn(op.JMP | op.JEQ, 0, off=2, imm=1),
        Insn(MOV, 0, imm=0),
        EXIT,
        Insn(MOV, 0, imm=1),
        EXIT,
    ]
    with attached(tmp_cgroup, pack(program)) as dump:
        answers = {major: interpret(dump, Access("c", major, 0, 6), helpers=kernel_symbols.get) for major in (1, 195)}
    assert answers[1].value == "allow"
    assert (answers[195].value, answers[195].why) == ("unknown", "it depends on bpf_get_current_pid_tgid")


ARITHMETIC = (op.ADD, op.SUB, op.MUL, op.DIV, op.OR, op.AND, op.LSH, op.RSH, op.MOD, op.XOR, op.MOV, op.ARSH)
COMPARISONS = (op.JEQ, op.JGT, op.JGE, op.JSET, op.JNE, op.JSGT, op.JSGE, op.JLT, op.JLE, op.JSLT, op.JSLE)
NUMBERS = (0, 1, -1, 2, 31, 255, 65535, -2147483648, 2147483647)


def random_arithmetic(source: random.Random, *, newest: bool) -> list[Insn]:
    """A program that computes with what it is asked: every operation, width and comparison."""
    out = [Insn(LDX_W, register, 1, offset) for register, offset in ((6, 0), (7, 4), (8, 8))]
    out += [Insn(MOV, 9, imm=source.choice(NUMBERS)), Insn(MOV, 0, imm=1)]
    for _ in range(source.randint(5, 30)):
        kind, dst = source.choice((op.ALU, op.ALU64)), source.randint(6, 9)
        choice = source.random()
        if choice < 0.15:
            jump = source.choice((op.JMP, op.JMP32)) | source.choice(COMPARISONS)
            out.append(Insn(jump | op.REG, dst, source.randint(6, 9), 1))
            out.append(Insn(op.ALU64 | op.XOR, 0, imm=1))
        elif choice < 0.2:
            out.append(Insn(kind | op.NEG, dst))
        elif choice < 0.27:
            swap = (
                op.ALU64 | op.END if newest and source.random() < 0.3 else op.ALU | op.END | source.choice((0, op.REG))
            )
            out.append(Insn(swap, dst, imm=source.choice((16, 32, 64))))
        elif choice < 0.35 and newest:
            operation = source.choice((op.MOV, op.DIV, op.MOD))
            off = source.choice((8, 16)) if operation == op.MOV else 1
            out.append(Insn(kind | operation | op.REG, dst, source.randint(6, 9), off))
        elif choice < 0.65:
            out.append(Insn(kind | source.choice(ARITHMETIC) | op.REG, dst, source.randint(6, 9)))
        else:
            operation = source.choice(ARITHMETIC)
            value = source.choice(NUMBERS)
            if operation in (op.DIV, op.MOD):
                value = value or 1  # the verifier refuses what is known to divide by zero
            elif operation in (op.LSH, op.RSH, op.ARSH):
                value = source.randrange(32 if kind == op.ALU else 64)
            out.append(Insn(kind | operation, dst, imm=value))
    for register in (6, 7, 8, 9):
        out.append(Insn(op.ALU64 | op.XOR | op.REG, 0, register))
        out.append(Insn(op.ALU64 | op.MOV | op.REG, 2, register))
        out.append(Insn(op.ALU64 | op.RSH, 2, imm=source.randrange(64)))
        out.append(Insn(op.ALU64 | op.XOR | op.REG, 0, 2))
    return [*out, Insn(op.ALU64 | op.AND, 0, imm=1), EXIT]


def _has_newest(cgroup: Path) -> bool:
    """Whether the kernel knows signed division and its like (before v6.6 it does not)."""
    program = [Insn(MOV, 0, imm=1), Insn(MOV, 6, imm=1), Insn(op.ALU64 | op.DIV, 6, off=1, imm=1), EXIT]
    try:
        with attached(cgroup, pack(program)):
            return True
    except bpf.VerifierError:
        return False


def test_all_arithmetic(tmp_cgroup: Path) -> None:
    source = random.Random(11)
    newest = _has_newest(tmp_cgroup)
    seen = set()
    with asking(GRID, cgroup=tmp_cgroup) as ask:
        for _ in range(120):
            program = random_arithmetic(source, newest=newest)
            with attached(tmp_cgroup, pack(program)) as dump:
                met = ["allow" if allowed else "deny" for allowed in ask()]
            seen |= set(met)
            assert [interpret(dump, access).value for access in GRID] == met, program
            assert [interpret(program, access).value for access in GRID] == met, program
    assert seen == {"allow", "deny"}
