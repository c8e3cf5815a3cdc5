# SPDX-License-Identifier: Apache-2.0
"""What is known of a launch before GPUs are leased."""

from __future__ import annotations

import pytest

from gpuiso.grants.document import read_grants
from gpuiso.host.live import LiveHost
from gpuiso.launch.prepare import Options, prepare
from gpuiso.policy.limits import GpuMax, parse_bytes
from tests.tiers import requires

pytestmark = requires("kernel")


def test_without_a_gpu_no_limit_of_one_has_to_be_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuiso.host.live.LiveHost.nvml", lambda _: None)
    options = Options(("true",), "none", gpu_max=GpuMax(50000, 100000), gpu_memory=parse_bytes("1G"))
    prepared = prepare(LiveHost(), options, {"PATH": "/usr/bin:/bin"})
    assert (prepared.gpu_max, prepared.memory) == (None, None)
    assert prepared.policy((), {})[1] == {}


def test_nor_one_that_comes_with_a_grant(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "gpuiso: 1\ngrants:\n- users: [root]\n  gpu.max: 50000 100000\n"
    grants = read_grants(text, file="grants.yaml")
    monkeypatch.setattr("gpuiso.host.live.LiveHost.nvml", lambda _: None)
    monkeypatch.setattr("gpuiso.launch.prepare.load_grants", lambda _: grants)
    prepared = prepare(LiveHost(), Options(("true",), "none"), {"PATH": "/usr/bin:/bin"})
    assert prepared.gpu_max is None
