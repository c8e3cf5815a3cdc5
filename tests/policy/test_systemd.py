# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from gpuiso.errors import NotSupported
from gpuiso.policy.parse import parse_rules
from gpuiso.policy.rule import Rule, mask
from gpuiso.policy.systemd import SystemdDevices, to_systemd
from tests.policy.drawing import DEVICES, RULES, every_bits


def allows(settings: SystemdDevices, device: str, major: int, minor: int, bits: int) -> bool:
    """What systemd's filter decides (src/core/bpf-devices.c): one entry must cover the access."""
    if settings.policy == "auto" and not settings.allow:
        return True
    word = {"c": "char", "b": "block"}[device]
    names = {f"{word}-*", f"{word}-{major}", f"/dev/{word}/{major}:{minor}"}
    return any(name in names and bits & ~mask(access) == 0 for name, access in settings.allow)


@given(RULES, st.booleans())
def test_settings_mean_what_the_rules_mean(rules: list[Rule], default_allow: bool) -> None:
    try:
        settings = to_systemd(rules, default_allow=default_allow)
    except NotSupported:
        reject()
    assert len({name for name, _ in settings.allow}) == len(settings.allow), "systemd keeps the last of equal names"
    for device, bits in zip(DEVICES, every_bits(rules, default_allow=default_allow), strict=True):
        for asked in range(1, 8):
            assert allows(settings, *device, asked) == (asked & ~bits == 0)


def test_the_words_of_a_unit_file() -> None:
    rules = parse_rules("allow c 1:3 r\nallow c 1:3 w\nallow c 195:* rw\nallow b *:* r")
    assert to_systemd(rules).unit_lines() == [
        "DevicePolicy=strict",
        "DeviceAllow=",
        "DeviceAllow=/dev/char/1:3 rw",
        "DeviceAllow=char-195 rw",
        "DeviceAllow=block-* r",
    ]
    assert to_systemd([]) == SystemdDevices("strict", ())
    assert to_systemd(parse_rules("allow a")) == SystemdDevices("auto", ())


@pytest.mark.parametrize(
    ("text", "default_allow", "message"),
    [
        ("deny c 195:1 rwm", True, "gpu.rules:1: deny c 195:1 rwm: denies a part of what a wildcard allows"),
        ("allow c 195:* rw\ndeny c 195:1 w", False, "gpu.rules:2: deny c 195:1 w: denies a part"),
        ("allow c *:3 r", False, "gpu.rules:1: allow c *:3 r: systemd cannot allow the minor 3 of every major"),
    ],
)
def test_what_systemd_cannot_say(text: str, default_allow: bool, message: str) -> None:
    with pytest.raises(NotSupported, match=re.escape(message)) as caught:
        to_systemd(parse_rules(text, file="gpu.rules"), default_allow=default_allow)
    assert caught.value.hint
