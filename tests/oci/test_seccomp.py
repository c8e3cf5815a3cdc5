# SPDX-License-Identifier: Apache-2.0
"""Which ioctl numbers the rules let through, for every number that matters and for numbers nobody thought of."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuiso.errors import BadInput
from gpuiso.oci.seccomp import PROFILES, REFUSED, Profile, admits, fragment, merge, parse_profile

F, UVM_TOOLS = 0x46, (*range(56, 65), 67, 76, 77, 79)
profiles = pytest.mark.parametrize("profile", PROFILES)


def lets_through(rules: list[dict[str, Any]], register: int) -> bool:
    """What libseccomp makes of the rules for one value of the 64-bit register."""
    conditions = [condition for rule in rules for condition in rule["args"]]
    assert {condition["op"] for condition in conditions} == {"SCMP_CMP_MASKED_EQ"}
    return any(register & condition["value"] == condition["valueTwo"] for condition in conditions)


def iowr(number: int, size: int, letter: int = F) -> int:
    return 0xC0000000 | size << 16 | letter << 8 | number


@profiles
def test_every_name_is_let_through_with_any_upper_half(profile: Profile) -> None:
    rules = fragment(profile)
    for one in admits(profile):
        assert one.number & one.mask == one.number, one
        for upper in (0, 0xFFFFFFFF, 0x12345678):  # the kernel looks at the lower half alone
            assert lets_through(rules, upper << 32 | one.number), one


@profiles
@pytest.mark.parametrize("number", REFUSED)
def test_what_is_refused_is_refused_under_every_letter_and_size(profile: Profile, number: int) -> None:
    """The driver does not look at the letter: no rule may have this lowest byte and leave the size open."""
    rules = fragment(profile)
    assert not any(lets_through(rules, iowr(number, size)) for size in range(1 << 14))
    for one in admits(profile):
        if (number ^ one.number) & one.mask & 0xFF == 0:
            assert one.mask & 0x3FFF0000 == 0x3FFF0000, one
            assert one.number >> 16 & 0x3FFF <= 44, "the parameters of these functions are larger, or they have none"


@profiles
def test_of_the_drivers_letter_nothing_else(profile: Profile) -> None:
    rules = fragment(profile)
    named = {one.number & 0xFF for one in admits(profile) if one.number >> 8 & 0xFF == F}
    through = {number for number in range(256) if lets_through(rules, iowr(number, 32))}
    assert through == named
    assert not named & REFUSED.keys()


def test_profiles_grow() -> None:
    utility, compute, graphics = (
        {one.name for one in admits(profile)} for profile in ("utility", "compute", "graphics")
    )
    assert utility < compute < graphics
    assert not any(name.startswith("UVM") for name in utility)
    assert not any(name.startswith(("DRM", "NVKMS")) for name in compute)


@profiles
def test_tools_of_uvm_read_no_memory(profile: Profile) -> None:
    assert not any(lets_through(fragment(profile), number) for number in UVM_TOOLS)


@given(st.integers(0, (1 << 64) - 1), st.sampled_from(PROFILES))
def test_what_nobody_named_is_refused(register: int, profile: Profile) -> None:
    word = register & 0xFFFFFFFF
    named = any(word & one.mask == one.number for one in admits(profile))
    assert lets_through(fragment(profile), register) == named


@profiles
def test_a_rule_has_one_condition(profile: Profile) -> None:
    rules = fragment(profile)
    assert all(rule["names"] == ["ioctl"] and len(rule["args"]) == 1 for rule in rules)
    assert len({json.dumps(rule) for rule in rules}) == len(rules)
    assert len(rules) < 300  # a filter has 4096 instructions


DEFAULT = {
    "defaultAction": "SCMP_ACT_ERRNO",
    "archMap": [{"architecture": "SCMP_ARCH_X86_64", "subArchitectures": []}],
    "syscalls": [
        {"names": ["read", "ioctl", "write"], "action": "SCMP_ACT_ALLOW", "args": [], "includes": {}, "comment": "c"},
        {"names": ["ioctl"], "action": "SCMP_ACT_ALLOW", "includes": {"caps": ["CAP_SYS_ADMIN"]}},
        {"names": ["ioctl", "bpf"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1},
        {"names": ["mount"], "action": "SCMP_ACT_ALLOW"},
    ],
}


def test_merging_changes_ioctl_alone() -> None:
    before = json.dumps(DEFAULT)
    merged = merge(DEFAULT, "compute", "f")
    assert json.dumps(DEFAULT) == before
    first, refusal, mount, *ours = merged["syscalls"]
    assert first == {**DEFAULT["syscalls"][0], "names": ["read", "write"]}  # type: ignore[dict-item]
    assert refusal["errnoRet"] == 1
    assert mount["names"] == ["mount"]
    assert ours == fragment("compute")
    assert {name: merged[name] for name in merged if name != "syscalls"} == {
        name: value for name, value in DEFAULT.items() if name != "syscalls"
    }


def test_merging_again_changes_nothing() -> None:
    once = merge(DEFAULT, "compute", "f")
    assert merge(once, "compute", "f") == once
    assert merge(once, "utility", "f") == merge(DEFAULT, "utility", "f")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "f:1:2: not JSON"),
        ('{"a": NaN}', "f: not JSON: NaN is no value of JSON"),
        ('{"syscalls": [], "syscalls": []}', "f: not a seccomp profile: 'syscalls' is given twice in one object"),
        ("[" * 100_000, "f: not a seccomp profile: nested too deep"),
        ("{}", "f: not a seccomp profile: it has no defaultAction"),
        ('{"defaultAction": "SCMP_ACT_ERRNO", "syscalls": {}}', "syscalls must be a list"),
        ('{"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{}]}', r"syscalls\[0\] has no names"),
        ('{"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{"names": [1]}]}', r"syscalls\[0\] has no names"),
    ],
)
def test_what_is_no_profile_is_refused(text: str, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        parse_profile(text, "f")


def test_a_profile_that_admits_by_default_cannot_be_restricted() -> None:
    with pytest.raises(BadInput, match="defaultAction is SCMP_ACT_ALLOW"):
        merge({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": []}, "compute", "f")
