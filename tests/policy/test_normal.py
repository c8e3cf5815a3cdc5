# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gpuiso.policy.difference import difference
from gpuiso.policy.normal import normal_form
from gpuiso.policy.parse import parse_rules
from gpuiso.policy.rule import MAX_MAJOR, MAX_MINOR, Rule, mask
from gpuiso.policy.table import DEVICE_TYPES, equivalent, overlay, table
from tests.policy.drawing import DEVICES, RULES, every_bits


@given(RULES, st.booleans())
def test_a_table_says_what_the_rules_say(rules: list[Rule], default_allow: bool) -> None:
    for device in DEVICE_TYPES:
        rows = table(rules, device, default_allow=default_allow)
        assert [rows[0][0], rows[-1][1]] == [0, MAX_MAJOR]
        assert all(cells[0][0] == 0 and cells[-1][1] == MAX_MINOR for _, _, cells in rows)
        assert all(before[1] + 1 == after[0] for before, after in pairwise(rows))
    found = [
        next(
            bits
            for low, high, cells in table(rules, device, default_allow=default_allow)
            if low <= major <= high
            for first, last, bits in cells
            if first <= minor <= last
        )
        for device, major, minor in DEVICES
    ]
    assert found == every_bits(rules, default_allow=default_allow)


@given(RULES, st.booleans())
def test_the_normal_form_means_the_same_and_is_its_own(rules: list[Rule], default_allow: bool) -> None:
    allow, normal = normal_form(rules, default_allow=default_allow)
    assert every_bits(list(normal), default_allow=allow) == every_bits(rules, default_allow=default_allow)
    assert equivalent(rules, normal, left_default=default_allow, right_default=allow)
    assert normal_form(normal, default_allow=allow) == (allow, normal)


@given(RULES, RULES)
def test_equal_meaning_is_equal_normal_form(left: list[Rule], right: list[Rule]) -> None:
    same = equivalent(left, right, left_default=False, right_default=False)
    assert same == (normal_form(left) == normal_form(right))
    assert same == (every_bits(left, default_allow=False) == every_bits(right, default_allow=False))
    assert same == (not difference(left, right, old_default=False, new_default=False))


def test_the_same_in_other_words() -> None:
    short = parse_rules("deny a\nallow c 195:* rw\nallow c 195:3 m")
    long = parse_rules("allow c 195:* rwm\ndeny c 195:* m\nallow c 1:3 r\nallow c 195:3 m\ndeny c 1:3 rwm")
    assert normal_form(long) == normal_form(short)
    assert [str(rule) for rule in normal_form(long)[1]] == ["allow c 195:* rw", "allow c 195:3 m"]
    assert normal_form(parse_rules("allow a")) == (True, ())
    every_major = [Rule(True, "c", major, None, "r") for major in range(MAX_MAJOR + 1)]
    assert [str(rule) for rule in normal_form(every_major)[1]] == ["allow c *:* r"]


@given(RULES, RULES, st.booleans(), st.booleans())
def test_a_difference_is_what_was_gained_and_lost(old: list[Rule], new: list[Rule], was: bool, will: bool) -> None:
    found = difference(old, new, old_default=was, new_default=will)
    before, after = every_bits(old, default_allow=was), every_bits(new, default_allow=will)
    for parts, expected in (
        (found.allowed, [new & ~old for old, new in zip(before, after, strict=True)]),
        (found.denied, [old & ~new for old, new in zip(before, after, strict=True)]),
    ):
        for (device, major, minor), bits in zip(DEVICES, expected, strict=True):
            told = [
                part
                for part in parts
                if part.type == device
                and part.majors[0] <= major <= part.majors[1]
                and part.minors[0] <= minor <= part.minors[1]
            ]
            assert len(told) <= 1
            assert sum(mask(part.access) for part in told) == bits


def test_a_difference_in_words() -> None:
    old = parse_rules("allow c 195:0 rw\nallow c 5:* rw")
    new = parse_rules("allow c 195:1 rw\nallow c 5:* rwm\nallow c 195:0 r")
    found = difference(old, new, old_default=False, new_default=False)
    assert found.describe({("c", 195, 1): "/dev/nvidia1"}) == [
        "becomes allowed: c 5:* m",
        "becomes allowed: /dev/nvidia1 (c 195:1 rw)",
        "becomes denied: c 195:0 w",
    ]


def test_overlay_cuts_where_either_changes() -> None:
    assert list(overlay([(0, 3, "a"), (4, 9, "b")], [(0, 5, 1), (6, 9, 2)])) == [
        (0, 3, "a", 1),
        (4, 5, "b", 1),
        (6, 9, "b", 2),
    ]
