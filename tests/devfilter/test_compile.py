# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import random
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuiso.devfilter.assemble import TooLarge
from gpuiso.devfilter.compile import compile_rules
from gpuiso.devfilter.decode import listing
from gpuiso.devfilter.insn import pack
from gpuiso.devfilter.interpret import Access, interpret
from gpuiso.devfilter.recover import recover
from gpuiso.policy.meaning import allowed_bits, permits
from gpuiso.policy.parse import parse_rules
from gpuiso.policy.rule import DeviceType, Rule, letters
from tests.devfilter.layouts import MAJORS, MINORS, random_rules

GOLDEN = Path(__file__).parent / "golden"
TYPES: tuple[DeviceType, ...] = ("b", "c")
GRID = [
    Access(device, major, minor, mask)
    for device, major, minor, mask in product(TYPES, (*MAJORS, 2, 4095), (*MINORS, 2, 1048575), range(8))
]


def meant(rules: list[Rule], access: Access, *, default_allow: bool) -> str:
    bits = allowed_bits(rules, access.type, access.major, access.minor, default_allow=default_allow)
    return "allow" if permits(bits, access.mask) else "deny"


@pytest.mark.parametrize("golden", sorted(GOLDEN.glob("*.txt")), ids=lambda path: path.stem)
def test_golden_listings(golden: Path) -> None:
    """A golden file holds rules, a line of dashes, and the listing of the program they compile to."""
    text, _, expected = golden.read_text().partition("---\n")
    assert listing(compile_rules(parse_rules(text))) == expected


def test_there_are_golden_listings() -> None:
    assert len(list(GOLDEN.glob("*.txt"))) >= 6


@pytest.mark.parametrize("default_allow", [False, True])
def test_program_does_what_the_rules_mean(default_allow: bool) -> None:
    source = random.Random(default_allow)
    for _ in range(150):
        rules = random_rules(source, source.randint(0, 14))
        program = compile_rules(rules, default_allow=default_allow)
        for access in source.sample(GRID, 80):
            expected = meant(rules, access, default_allow=default_allow)
            assert interpret(program, access).value == expected, (access, [str(rule) for rule in rules])


def test_recovered_rules_compile_to_the_same_answers() -> None:
    source = random.Random(7)
    for _ in range(60):
        rules = random_rules(source, source.randint(0, 10))
        recovered = recover(pack(compile_rules(rules)))
        assert recovered.exact
        spelt = [
            Rule(line.allow, line.type, major, minor, line.access)
            for line in recovered.lines
            for major in ([None] if line.major is None else _few(*line.major))
            for minor in ([None] if line.minor is None else _few(*line.minor))
        ]
        program = compile_rules(spelt)
        for access in source.sample(GRID, 40):
            assert interpret(program, access).value == recovered.verdict(access).value


def _few(low: int, high: int) -> list[int]:
    """The numbers of a span that the grid of accesses can meet."""
    return [number for number in {*MAJORS, *MINORS, 2, 4095, 1048575} if low <= number <= high]


NUMBERS = st.none() | st.integers(0, 12)


@given(
    st.lists(
        st.builds(
            Rule, st.booleans(), st.sampled_from(["a", "b", "c"]), NUMBERS, NUMBERS, st.integers(1, 7).map(letters)
        ),
        max_size=40,
    ),
    st.sampled_from(TYPES),
    st.integers(0, 13),
    st.integers(0, 13),
    st.integers(0, 7),
    st.booleans(),
)
def test_any_rules(
    rules: list[Rule], device: DeviceType, major: int, minor: int, mask: int, default_allow: bool
) -> None:
    access = Access(device, major, minor, mask)
    program = compile_rules(rules, default_allow=default_allow, first=(3, 5))
    assert interpret(program, access).value == meant(rules, access, default_allow=default_allow)


def test_a_deny_takes_effect_if_any_requested_bit_is_denied() -> None:
    rules = parse_rules("allow a\ndeny c 1:3 w")
    program = compile_rules(rules)
    answers = {letters(mask): interpret(program, Access("c", 1, 3, mask)).value for mask in (2, 4, 6)}
    assert answers == {"r": "allow", "w": "deny", "rw": "deny"}


def test_allows_of_one_bit_each_add_up() -> None:
    program = compile_rules(parse_rules("allow c 1:3 r\nallow c 1:* w"))
    assert interpret(program, Access("c", 1, 3, 6)).value == "allow"
    assert interpret(program, Access("c", 1, 3, 7)).value == "deny"
    assert interpret(program, Access("c", 1, 4, 6)).value == "deny"


def test_a_decision_takes_a_few_steps_however_many_rules() -> None:
    source = random.Random(1)
    rules = [Rule(True, "c", source.randrange(4096), source.randrange(1 << 20), "rw") for _ in range(4096)]
    program = compile_rules(rules)
    assert len(program) < 4 * len(rules)
    for rule in source.sample(rules, 50):
        assert rule.major is not None
        assert rule.minor is not None
        verdict = interpret(program, Access("c", rule.major, rule.minor, 6), max_steps=60)
        assert verdict.value == "allow"


def test_gpu_majors_are_met_first() -> None:
    rules = [Rule(True, "c", major, 0, "rw") for major in range(1, 600)]
    program = compile_rules(rules, first=(195, 238))
    for major in (195, 238):
        assert interpret(program, Access("c", major, 0, 6), max_steps=12).value == "allow"


def test_more_rules_than_jumps_can_span() -> None:
    rules = [Rule(True, "c", number % 4096, number, "rw") for number in range(0, 120_000, 2)]
    with pytest.raises(TooLarge):
        compile_rules(rules)
