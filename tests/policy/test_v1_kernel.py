# SPDX-License-Identifier: Apache-2.0
"""What tests/policy/kernel_v1.py takes the v1 controller for, beside the running kernel's own."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuiso.errors import NotSupported
from gpuiso.policy.rule import letters
from gpuiso.policy.v1 import V1State, read_devices_list, v1_state, v1_writes
from tests.devfilter.layouts import random_rules
from tests.policy.kernel_v1 import V1Devices
from tests.tiers import requires

pytestmark = requires("kernel")

PAIRS = 400


@pytest.fixture
def v1_cgroup() -> Iterator[Path]:
    """A directory of the v1 devices hierarchy; skips where that is not mounted."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, mount, kind, options, *_ = line.split()
        if kind == "cgroup" and "devices" in options.split(","):
            break
    else:
        pytest.skip("the v1 devices controller is not mounted")
    path = Path(mount, f"gpuiso-test-{os.getpid()}-{time.monotonic_ns()}")
    path.mkdir()
    try:
        yield path
    finally:
        path.rmdir()


def shown(kernel: V1Devices) -> list[str]:
    if kernel.default_allow:
        return ["a *:* rwm"]
    return sorted(f"{kind} {major}:{minor} {letters(bits)}" for (kind, major, minor), bits in kernel.entries.items())


def test_each_write_does_what_is_expected(v1_cgroup: Path) -> None:
    """Random states one after the other, the list read back after each write."""
    source = random.Random(4)
    model, state, written = V1Devices(), V1State(True, {}), 0
    for _ in range(PAIRS):
        rules, default_allow = random_rules(source, source.randint(0, 6)), source.random() < 0.3
        try:
            new = v1_state(rules, default_allow=default_allow)
            writes = v1_writes(state, new, vacant=True)
        except NotSupported:
            continue
        for write in writes:
            (v1_cgroup / write.file).write_text(write.text)
            model.write(write.file, write.text)
            written += 1
            assert sorted((v1_cgroup / "devices.list").read_text().splitlines()) == shown(model)
        state = new
        if not new.default_allow:
            assert read_devices_list((v1_cgroup / "devices.list").read_text()) == new
    assert written > PAIRS
