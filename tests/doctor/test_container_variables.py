# SPDX-License-Identifier: Apache-2.0
"""What NVIDIA's container runtime, ROCm and Level Zero read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.doctor.job import PID, Job, alarms
from tests.records import UUIDS

STALE = "GPU-99999999-9999-9999-9999-999999999999"


def container(directory: Path, env: dict[str, str], *, inside: bool = True, holds: bool = False) -> Job:
    job = Job(directory)
    nodes = {"/dev/nvidiactl": (195, 255), "/dev/nvidia0": (195, 0), "/dev/nvidia-uvm": (238, 0)}
    job.add(PID, env, own_dev=nodes, descriptors=("/dev/nvidia-uvm",) if holds else ())
    job.files[f"/proc/{PID}/maps"] = ""
    for pid in (1, PID):
        target = "mnt:[4026531841]" if pid == 1 or not inside else "mnt:[4026532999]"
        job.nodes[f"/proc/{pid}/ns/mnt"] = {"path": f"/proc/{pid}/ns/mnt", "type": "l", "target": target}
    return job


@pytest.mark.parametrize(
    ("value", "env", "expected"),
    [
        ("utility", {"CUDA_VERSION": "12.4"}, {"GPU-DRIVER-CAPS": "warning"}),
        ("graphics,display", {"CUDA_VISIBLE_DEVICES": "0"}, {"GPU-DRIVER-CAPS": "warning"}),
        ("video", {}, {"GPU-DRIVER-CAPS": "info"}),
        ("compute", {}, {"GPU-DRIVER-CAPS": "info"}),
        ("compute,utility", {}, {}),
        ("all", {}, {}),
        ("", {}, {}),
    ],
)
def test_capabilities(tmp_path: Path, value: str, env: dict[str, str], expected: dict[str, str]) -> None:
    job = container(tmp_path, {"NVIDIA_DRIVER_CAPABILITIES": value, **env})
    assert job.rules("GPU-DRIVER-CAPS") == expected
    assert job.rules("GPU-DRIVER-CAPS", asked=False) == alarms(expected)


def test_capabilities_count_in_containers_alone(tmp_path: Path) -> None:
    env = {"NVIDIA_DRIVER_CAPABILITIES": "utility", "CUDA_VERSION": "12.4"}
    assert container(tmp_path / "a", env, inside=False).rules("GPU-DRIVER-CAPS") == {}
    assert container(tmp_path / "b", env, holds=True).rules("GPU-DRIVER-CAPS") == {}, "CUDA works in it"


def docker(directory: Path, **inspect: Any) -> dict[str, str]:
    job = Job(directory)
    entry = {"Id": "c0ffee", "Name": "/plex", "Config": {"Env": []}, "State": {}, "HostConfig": {}, **inspect}
    job.tools["docker.json"] = {"info": {}, "containers": {"c0ffee": entry}}
    return job.rules("GPU-UUID-", asked=False)


def test_stale_uuids_in_docker(tmp_path: Path) -> None:
    stale = {"Env": [f"NVIDIA_VISIBLE_DEVICES={UUIDS[0]},{STALE}"]}
    request = {"DeviceRequests": [{"DeviceIDs": [STALE]}]}
    failed = {"Running": False, "Error": f"device error: {STALE}: unknown device"}
    assert docker(tmp_path / "a", HostConfig=request, State=failed) == {"GPU-UUID-STALE": "error"}
    assert docker(tmp_path / "b", Config=stale, State={"Running": True}) == {"GPU-UUID-STALE": "warning"}
    assert docker(tmp_path / "c", Config=stale, State={"Running": False}) == {"GPU-UUID-STALE": "info"}
    fine = {"DeviceRequests": [{"DeviceIDs": [UUIDS[1], "0"]}, {"DeviceIDs": None}]}
    assert docker(tmp_path / "d", HostConfig=fine, Config={"Env": ["NVIDIA_VISIBLE_DEVICES=all"]}) == {}
    assert docker(tmp_path / "e", HostConfig={"DeviceRequests": None}, Config={"Env": None}) == {}


class Rendered(Job):
    """GPUs of another vendor beside no NVIDIA driver."""

    def __init__(self, directory: Path, vendor: str, driver: str, count: int, env: dict[str, str]) -> None:
        super().__init__(directory)
        self.files = {"/proc/devices": "Character devices:\n226 drm\n234 kfd\n", "/proc/modules": f"{driver} 1 0 -\n"}
        self.nodes = {}
        del self.tools["nvml.json"]
        for index in range(count):
            base = f"/sys/bus/pci/devices/0000:{index + 16:02x}:00.0"
            for name, value in (("vendor", vendor), ("device", "0x7408"), ("class", "0x038000")):
                self.files[f"{base}/{name}"] = f"{value}\n"
            self.files[f"{base}/drm/renderD{128 + index}/dev"] = f"226:{128 + index}\n"
            self.nodes[f"{base}/driver"] = {"path": f"{base}/driver", "type": "l", "target": f"../drivers/{driver}"}
            self.add_node(f"/dev/dri/renderD{128 + index}", 226, 128 + index)
        self.add_node("/dev/kfd", 234, 0)
        self.add(PID, env)


@pytest.mark.parametrize(
    ("rocr", "second", "found"),
    [
        ("2,3", {"HIP_VISIBLE_DEVICES": "2,3"}, True),
        ("2,3", {"CUDA_VISIBLE_DEVICES": "2,3"}, True),
        ("1,2", {"HIP_VISIBLE_DEVICES": "1,2"}, True),
        ("0,1", {"HIP_VISIBLE_DEVICES": "0,1"}, False),
        ("2,3", {"HIP_VISIBLE_DEVICES": "0,1"}, False),
        ("2,3", {"HIP_VISIBLE_DEVICES": "1"}, False),
        ("2,3", {}, False),
    ],
)
def test_two_masks_of_amd(tmp_path: Path, rocr: str, second: dict[str, str], found: bool) -> None:
    job = Rendered(tmp_path, "0x1002", "amdgpu", 4, {"ROCR_VISIBLE_DEVICES": rocr, **second})
    expected = {"GPU-AMD-DOUBLE-MASK": "error"} if found else {}
    assert job.rules("GPU-AMD-DOUBLE", "GPU-CVD-") == expected


@pytest.mark.parametrize(
    ("env", "found"),
    [
        ({"ZE_AFFINITY_MASK": "gpu"}, True),
        ({"ZE_AFFINITY_MASK": "0.x"}, True),
        ({"ZE_AFFINITY_MASK": "0.1"}, True),  # subdevices need the COMPOSITE hierarchy
        ({"ZE_AFFINITY_MASK": "99"}, True),
        ({"ZE_AFFINITY_MASK": "0.1", "ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE"}, False),
        ({"ZE_AFFINITY_MASK": "9", "ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE"}, True),
        ({"ZE_AFFINITY_MASK": "3"}, False),  # two GPUs may well have four tiles
        ({"ZE_AFFINITY_MASK": "0,1"}, False),
        ({"ZE_AFFINITY_MASK": "default"}, False),
        ({"ZE_AFFINITY_MASK": ""}, False),
        ({}, False),
    ],
)
def test_masks_of_intel(tmp_path: Path, env: dict[str, str], found: bool) -> None:
    job = Rendered(tmp_path, "0x8086", "i915", 2, env)
    assert job.rules("GPU-INTEL-") == ({"GPU-INTEL-MASK-INVALID": "error"} if found else {})
