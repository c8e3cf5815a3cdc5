# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from itertools import product

import pytest
from hypothesis import event, given, reject, settings
from hypothesis import strategies as st

from gpuiso.errors import BadInput, NotSupported
from gpuiso.policy.exceptions import Key
from gpuiso.policy.parse import parse_rules
from gpuiso.policy.rule import Rule
from gpuiso.policy.v1 import V1State, V1Write, read_devices_list, v1_state, v1_writes
from tests.policy.drawing import DEVICES, KEYS, RULES, every_bits
from tests.policy.kernel_v1 import V1Devices

FRESH = V1State(True, {})
ACCESSES = [(*device, mask) for device, mask in product(DEVICES, range(1, 8))]


def answers(kernel: V1Devices) -> list[bool]:
    return [kernel.allows(*access) for access in ACCESSES]


def holding(state: V1State) -> V1Devices:
    """A cgroup in this state, whatever gap it took to get there."""
    kernel = V1Devices()
    for write in v1_writes(FRESH, state, vacant=True):
        kernel.write(write.file, write.text)
    return kernel


def state_or_skip(rules: list[Rule], *, default_allow: bool) -> V1State:
    try:
        return v1_state(rules, default_allow=default_allow)
    except NotSupported:
        reject()


def writes_or_none(old: V1State, new: V1State) -> list[V1Write] | None:
    try:
        return v1_writes(old, new)
    except NotSupported:
        return None


def check_no_gap(old: V1State, new: V1State, writes: list[V1Write]) -> None:
    kernel = holding(old)
    before, after = answers(kernel), answers(holding(new))
    for write in writes:
        kernel.write(write.file, write.text)
        for access, was, now, will in zip(ACCESSES, before, answers(kernel), after, strict=True):
            assert now <= (was or will), f"after {write}: {access} is allowed, in neither state"
            assert now >= (was and will), f"after {write}: {access} is denied, in neither state"
    assert answers(kernel) == after
    assert all(bits for bits in kernel.entries.values())


@given(RULES, st.booleans())
def test_a_state_means_what_the_rules_mean(rules: list[Rule], default_allow: bool) -> None:
    state = state_or_skip(rules, default_allow=default_allow)
    allowed = [mask & ~bits == 0 for bits in every_bits(rules, default_allow=default_allow) for mask in range(1, 8)]
    assert answers(holding(state)) == allowed
    assert [state.allows(*access) for access in ACCESSES] == allowed


@settings(max_examples=300)
@given(RULES, RULES, st.booleans())
def test_writes_leave_no_gap(old: list[Rule], new: list[Rule], default_allow: bool) -> None:
    before, after = (state_or_skip(rules, default_allow=default_allow) for rules in (old, new))
    writes = writes_or_none(before, after)
    if writes is None:
        event("refused")
        assert before.default_allow != after.default_allow
    else:
        event("the same default" if before.default_allow == after.default_allow else "another default")
        check_no_gap(before, after, writes)


STATES = st.dictionaries(KEYS, st.integers(1, 7), max_size=7)


@settings(max_examples=300)
@given(STATES, STATES, st.booleans())
def test_writes_from_and_to_states_of_others(old: dict[Key, int], new: dict[Key, int], default_allow: bool) -> None:
    before, after = V1State(default_allow, old), V1State(default_allow, new)
    writes = writes_or_none(before, after)
    if writes is None:
        event("refused")
        assert not default_allow
        assert [key for key in new if old.get(key, 0) & ~new[key] and new[key] & ~old.get(key, 0)]
    else:
        check_no_gap(before, after, writes)


def test_crossing_entries_are_bridged() -> None:
    """Each device stays allowed that both states allow, although each entry turns from one access to another."""
    old: dict[Key, int] = {("c", 1, None): 3, ("c", None, 0): 1, ("c", 5, None): 1, ("c", None, 3): 3, ("c", 5, 0): 1}
    new: dict[Key, int] = {("c", 1, None): 4, ("c", None, 0): 6, ("c", 5, None): 6, ("c", None, 3): 4}
    before = V1State(False, {**old, ("c", 1, 0): 3, ("c", 1, 3): 3, ("c", 5, 3): 3})
    after = V1State(False, {**new, ("c", 1, 0): 6, ("c", 1, 3): 4, ("c", 5, 0): 6, ("c", 5, 3): 6})
    check_no_gap(before, after, v1_writes(before, after))
    crossed: tuple[dict[Key, int], dict[Key, int]] = (
        {("c", 1, None): 3, ("c", None, 0): 1},
        {("c", 1, None): 4, ("c", None, 0): 6},
    )
    writes = v1_writes(V1State(False, crossed[0]), V1State(False, crossed[1]))
    assert V1Write("devices.allow", "c 1:0 r") in writes
    assert V1Write("devices.deny", "c 1:0 r") in writes
    check_no_gap(V1State(False, crossed[0]), V1State(False, crossed[1]), writes)


def test_entries_that_overlap_in_part() -> None:
    """Two entries that change places: one of the two accesses that both states allow would be denied on the way."""
    old: dict[Key, int] = {("c", 1, None): 2, ("c", 1, 3): 4}
    new: dict[Key, int] = {("c", 1, None): 4, ("c", 1, 3): 2}
    before, after = V1State(False, old), V1State(False, new)
    with pytest.raises(NotSupported, match="overlap in part"):
        v1_writes(before, after)
    kernel = holding(before)
    for write in v1_writes(before, after, vacant=True):
        kernel.write(write.file, write.text)
    assert answers(kernel) == answers(holding(after))


def test_an_entry_shrinks_before_it_grows() -> None:
    old, new = (v1_state(parse_rules(text)) for text in ("allow c 1:3 r", "allow c 1:3 w"))
    assert [str(write) for write in v1_writes(old, new)] == ["devices.deny c 1:3 r", "devices.allow c 1:3 w"]


def test_what_is_new_comes_before_what_is_old_goes() -> None:
    old, new = (v1_state(parse_rules(text)) for text in ("allow c 195:* rw", "allow c 195:0 rw"))
    assert [str(write) for write in v1_writes(old, new)] == ["devices.allow c 195:0 rw", "devices.deny c 195:* rw"]
    assert v1_writes(old, old) == []


@pytest.mark.parametrize(
    ("text", "default_allow", "culprit"),
    [
        ("deny a\nallow c 195:* rwm\ndeny c 195:0 r\nallow b 1:1 r", False, "gpu.rules:3: deny c 195:0 r"),
        ("allow a\ndeny c 195:* rw\nallow c 195:0 r\nallow b 8:* r\ndeny b *:* m\ndeny b *:1 r", True, "gpu.rules:3: "),
        ("allow c *:3 rw\nallow c 1:* r", False, None),
        (
            "allow c *:* r\nallow c 1:* rw\ndeny c 1:3 w\nallow b 1:* r\ndeny b 1:0 r",
            False,
            "gpu.rules:3: deny c 1:3 w",
        ),
    ],
)
def test_a_hole_names_its_rule(text: str, default_allow: bool, culprit: str | None) -> None:
    rules = parse_rules(text, file="gpu.rules")
    if culprit is None:
        v1_state(rules, default_allow=default_allow)
        return
    with pytest.raises(NotSupported) as caught:
        v1_state(rules, default_allow=default_allow)
    assert caught.value.message.startswith(culprit)
    assert caught.value.exit_code == 5


def test_a_denial_of_one_device_takes_the_other_default() -> None:
    state = v1_state(parse_rules("allow a\ndeny c 195:1 rwm"))
    assert state == V1State(True, {("c", 195, 1): 7})


def test_another_default_needs_an_empty_cgroup() -> None:
    new = v1_state(parse_rules("allow c 195:0 rw"))
    with pytest.raises(NotSupported, match="for a moment everything would be denied") as caught:
        v1_writes(FRESH, new)
    assert "make a new cgroup" in (caught.value.hint or "")
    assert [str(write) for write in v1_writes(FRESH, new, vacant=True)] == [
        "devices.deny a",
        "devices.allow c 195:0 rw",
    ]
    with pytest.raises(NotSupported, match="for a moment everything would be allowed"):
        v1_writes(new, V1State(True, {("c", 195, 1): 7}))
    assert v1_writes(new, FRESH) == [V1Write("devices.allow", "a")]
    assert v1_writes(FRESH, V1State(False, {})) == [V1Write("devices.deny", "a")]


def test_what_devices_list_shows() -> None:
    assert read_devices_list("c 1:3 rwm\nc 195:* rw\nb *:* m\n") == V1State(
        False, {("c", 1, 3): 7, ("c", 195, None): 6, ("b", None, None): 1}
    )
    unknown = read_devices_list("a *:* rwm\n")
    assert unknown == V1State(True, None)
    assert read_devices_list("") == V1State(False, {})
    with pytest.raises(ValueError, match="not known"):
        unknown.allows("c", 1, 3, 1)
    with pytest.raises(ValueError, match="not known"):
        v1_writes(FRESH, unknown)
    with pytest.raises(NotSupported):
        v1_writes(unknown, V1State(True, {("c", 195, 1): 7}))
    with pytest.raises(BadInput, match=r"^devices.list:1:3: "):
        read_devices_list("c x rwm\n")
