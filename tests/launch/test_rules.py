# SPDX-License-Identifier: Apache-2.0
"""The rules of a launch: of all GPUs only the leased ones, what is no GPU as before."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuiso.gpu.inventory import build_inventory
from gpuiso.grants.units import units_of
from gpuiso.launch.rules import launch_policy
from gpuiso.policy.document import parse_policy
from gpuiso.policy.meaning import allowed_bits
from gpuiso.policy.resolve import ResolvedPolicy
from gpuiso.policy.rule import ALL_ACCESS, DeviceType
from gpuiso.policy.systemd import to_systemd
from tests.records import RecordMaker

GPU0, GPU1, CONTROL, UVM = ("c", 195, 0), ("c", 195, 1), ("c", 195, 255), ("c", 238, 0)
LATER, DRM, MEM, DISK = ("c", 195, 7), ("c", 226, 128), ("c", 1, 1), ("b", 254, 0)


def rules(tmp_path: Path, count: int, text: str | None = None) -> ResolvedPolicy:
    maker = RecordMaker(tmp_path)
    maker.files["/proc/devices"] = str(maker.files["/proc/devices"]).replace("195 nvidia\n", "195 nvidia\n226 drm\n")
    host = maker.host()
    inventory = build_inventory(host)
    document = None if text is None else parse_policy(text)
    return launch_policy(host, inventory, units_of(inventory)[:count], document)


def bits(policy: ResolvedPolicy, device: tuple[str, int, int]) -> int:
    kind: DeviceType = "b" if device[0] == "b" else "c"
    return allowed_bits(policy.rules, kind, device[1], device[2], default_allow=policy.default_allow)


@pytest.mark.parametrize("text", [None, "gpuiso: 1\nmemory.max: 1G\n"])
def test_only_the_leased_gpu(tmp_path: Path, text: str | None) -> None:
    policy = rules(tmp_path, 1, text)
    assert [bits(policy, device) for device in (GPU0, CONTROL, UVM, MEM, DISK)] == [ALL_ACCESS] * 5
    assert [bits(policy, device) for device in (GPU1, LATER, DRM)] == [0] * 3
    assert to_systemd(policy.rules, default_allow=policy.default_allow).policy == "strict"


def test_no_gpu_at_all(tmp_path: Path) -> None:
    policy = rules(tmp_path, 0)
    assert [bits(policy, device) for device in (GPU0, GPU1, CONTROL, UVM, LATER, DRM)] == [0] * 6
    assert bits(policy, MEM) == ALL_ACCESS


@pytest.mark.parametrize("text", ["allow a", "gpuiso: 1\ndefault: allow\ndevices: [allow gpu all]\n"])
def test_a_policy_cannot_widen_the_lease(tmp_path: Path, text: str) -> None:
    policy = rules(tmp_path, 1, text)
    assert [bits(policy, device) for device in (GPU1, LATER, DRM)] == [0] * 3
    assert [bits(policy, device) for device in (GPU0, CONTROL, UVM, MEM)] == [ALL_ACCESS] * 4


def test_a_policy_decides_about_all_that_is_no_gpu(tmp_path: Path) -> None:
    policy = rules(tmp_path, 1, "gpuiso: 1\ndevices: [allow default-nodes]\nmemory.max: 1G\n")
    assert [bits(policy, device) for device in (MEM, DISK)] == [0, 0]
    assert bits(policy, ("c", 1, 3)) == ALL_ACCESS
    assert policy.files == {"memory.max": ("1073741824",)}
