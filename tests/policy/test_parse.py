# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuiso.errors import BadInput
from gpuiso.policy.parse import parse_device, parse_rule, parse_rules
from gpuiso.policy.rule import MAX_MAJOR, MAX_MINOR, Rule, letters

DEVICE = "a device: a, b or c with numbers, a path, char-NAME, block-NAME, gpu, mig or default-nodes"
NUMBER_OR_STAR = st.none() | st.integers(0, MAX_MAJOR)
RULES = st.builds(
    Rule,
    st.booleans(),
    st.sampled_from(["b", "c"]),
    NUMBER_OR_STAR,
    st.none() | st.integers(0, MAX_MINOR),
    st.integers(1, 7).map(letters),
) | st.builds(Rule, st.booleans(), st.just("a"), st.none(), st.none(), st.just("rwm"))


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("allow c 195:0 rw", Rule(True, "c", 195, 0, "rw")),
        ("deny b 8:* r", Rule(False, "b", 8, None, "r")),
        ("  allow\tc  *:*   mwr  # the comment", Rule(True, "c", None, None, "rwm")),
        ("deny a", Rule(False, "a", None, None, "rwm")),
        ("allow a *:* rwm", Rule(True, "a", None, None, "rwm")),
        ("allow c 007:01048575 m", Rule(True, "c", 7, 1048575, "m")),
    ],
)
def test_rules(text: str, rule: Rule) -> None:
    assert parse_rule(text) == rule


@given(RULES)
def test_what_a_rule_prints_is_read_back(rule: Rule) -> None:
    assert parse_rule(str(rule)) == rule


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("", 1, "a rule is missing"),
        ("c 195:0 rw", 1, "expected allow or deny, not 'c'"),
        ("permit c 195:0 rw", 1, "expected allow or deny, not 'permit'"),
        ("allow", 6, f"expected {DEVICE}, found the end of the rule"),
        ("allow x 1:3 r", 7, f"expected {DEVICE}; not 'x'"),
        ("allow c", 8, "expected device numbers, such as 195:0 or 195:*, found the end of the rule"),
        ("allow c 195 rw", 9, "expected MAJOR:MINOR, not '195'"),
        ("allow c 195:-1 rw", 13, "expected a minor number or *, not '-1'"),
        ("allow c :3 rw", 9, "expected a major number or *, not ''"),
        ("allow c ١:3 rw", 9, "expected a major number or *, not '١'"),
        ("allow c 4096:0 rw", 9, "major 4096 is out of range: 0 to 4095"),
        ("allow c 195:1048576 rw", 13, "minor 1048576 is out of range: 0 to 1048575"),
        (f"allow c 195:{'9' * 5000} rw", 13, f"minor {'9' * 5000} is out of range: 0 to 1048575"),
        ("allow c 195:0", 14, "expected an access of r, w and m, found the end of the rule"),
        ("allow c 195:0 rx", 16, "unknown access 'x': r, w and m are known"),
        ("allow c 195:0 rr", 16, "access 'r' is given twice"),
        ("allow c 195:0 rw now", 18, "'now' is more than a rule holds"),
        ("deny a 195:0 r", 8, "a stands for every device and every access; '195:0 r' cannot narrow it"),
        ("deny a *:* r", 8, "a stands for every device and every access; '*:* r' cannot narrow it"),
    ],
)
def test_errors_name_the_column(text: str, column: int, message: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_rule(text, file="gpu.rules", line=7)
    assert str(caught.value) == f"gpu.rules:7:{column}: {message}"
    assert (caught.value.line, caught.value.column) == (7, column)


def test_a_text_of_rules() -> None:
    text = "# GPUs\ndeny a\n\n   # more\nallow c 195:* rw\n"
    assert parse_rules(text) == [Rule(False, "a", None, None, "rwm"), Rule(True, "c", 195, None, "rw")]
    with pytest.raises(BadInput, match=r"^f:3:1: expected allow or deny, not 'oops'"):
        parse_rules("deny a\n\noops\n", file="f")


def test_a_line_for_devices_allow() -> None:
    assert parse_device("c 195:* rw", allow=True) == Rule(True, "c", 195, None, "rw")


def test_a_forgotten_first_word_is_pointed_out() -> None:
    with pytest.raises(BadInput) as caught:
        parse_rule("c 195:* rw")
    assert caught.value.hint == "a rule starts with allow or deny: allow c 195:* rw"
