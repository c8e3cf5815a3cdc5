# SPDX-License-Identifier: Apache-2.0
"""Libraries of another driver: of the image, mounted into it, or simply the host's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.doctor.findings import map_files, severities
from tests.records import RecordMaker

OLD = "/usr/lib/x86_64-linux-gnu/libcuda.so.570.86.15"
NEW = "/usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04"
DOCKER = "/docker/" + "0123456789abcdef" * 4
HOST_ROOT = "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"
IMAGE_ROOT = "1 0 0:50 / / rw - overlay overlay rw\n"
MOUNTED = f"9 1 8:1 {OLD} {OLD} ro - ext4 /dev/sda1 rw\n"
VOLUME = "9 1 8:1 /old /usr/lib ro - ext4 /dev/sda1 rw\n"


def process(maker: RecordMaker, mapped: str, mountinfo: str, cgroup: str = "/job", **more: Any) -> None:
    maker.add_process(7, {"CUDA_VISIBLE_DEVICES": "0"}, cgroup=cgroup, **more)
    map_files(maker, 7, mapped)
    maker.files["/proc/7/mountinfo"] = mountinfo
    maker.files["/proc/1/mountinfo"] = HOST_ROOT
    maker.nodes[f"/proc/7/root{mapped}"] = {"path": f"/proc/7/root{mapped}", "type": "f"}
    maker.cgroups["/docker"] = {"device_programs": []}
    if not more:
        maker.nodes["/proc/7/fd/0"] = {"path": "/proc/7/fd/0", "type": "l", "target": "/dev/null"}


@pytest.mark.parametrize(
    ("mapped", "mountinfo", "cgroup", "expected"),
    [
        (OLD, IMAGE_ROOT, DOCKER, "GPU-LIBS-BAKED-IN-IMAGE"),
        (OLD, IMAGE_ROOT + MOUNTED, DOCKER, "GPU-DRV-STALE-CONTAINER-LIBS"),
        (OLD, IMAGE_ROOT + VOLUME, DOCKER, "GPU-DRV-STALE-CONTAINER-LIBS"),
        (OLD, IMAGE_ROOT, "/job", "GPU-LIBS-BAKED-IN-IMAGE"),
        (OLD, HOST_ROOT, "/job", None),
        (NEW, IMAGE_ROOT, DOCKER, None),
        ("/usr/local/cuda/compat/libcuda.so.570.86.15", IMAGE_ROOT, DOCKER, None),
    ],
)
def test_versions(tmp_path: Path, mapped: str, mountinfo: str, cgroup: str, expected: str | None) -> None:
    maker = RecordMaker(tmp_path)
    process(maker, mapped, mountinfo, cgroup)
    found = {rule for rule, _ in severities(maker) if rule.startswith(("GPU-LIBS", "GPU-DRV"))}
    assert found == ({expected} if expected else set())


def test_a_process_that_works_with_cuda_has_the_right_ones(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    process(maker, OLD, IMAGE_ROOT, DOCKER, descriptors=("/dev/nvidia0", "/dev/nvidia-uvm"))
    assert {severity for _, severity in severities(maker, 7)} <= {"info"}
