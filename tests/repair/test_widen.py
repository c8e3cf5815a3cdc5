# SPDX-License-Identifier: Apache-2.0
"""A widened program allows what was added, and answers as before otherwise."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuiso.devfilter import insn as op
from gpuiso.devfilter.compile import compile_rules
from gpuiso.devfilter.insn import Insn, Malformed, pack
from gpuiso.devfilter.interpret import Access, interpret
from gpuiso.devfilter.widen import widen
from gpuiso.policy.rule import READ, WRITE, DeviceType, Rule, letters

KINDS: st.SearchStrategy[DeviceType] = st.sampled_from(("b", "c"))
NUMBERS = st.integers(0, 3)
ADDED = st.lists(st.tuples(KINDS, NUMBERS, NUMBERS, st.integers(1, 7)), max_size=4)
RULES = st.lists(st.builds(Rule, st.booleans(), KINDS, NUMBERS, NUMBERS, st.integers(1, 7).map(letters)), max_size=4)


@given(ADDED, RULES, st.booleans(), KINDS, NUMBERS, NUMBERS, st.integers(0, 7))
def test_only_what_was_added_changes(
    added: list[tuple[DeviceType, int, int, int]],
    rules: list[Rule],
    default: bool,
    kind: DeviceType,
    major: int,
    minor: int,
    mask: int,
) -> None:
    program = pack(compile_rules(rules, default_allow=default))
    asked = Access(kind, major, minor, mask)
    given_now = any((kind, major, minor) == device[:3] and not mask & ~device[3] for device in added)
    expected = "allow" if given_now else interpret(program, asked).value
    assert interpret(widen(program, added), asked).value == expected


def test_a_program_with_calls_is_refused() -> None:
    program = pack([Insn(op.JMP | op.CALL, imm=5), Insn(op.ALU64 | op.MOV, 0), Insn(op.JMP | op.EXIT)])
    with pytest.raises(Malformed, match="calls functions"):
        widen(program, [("c", 195, 0, READ | WRITE)])
