# SPDX-License-Identifier: Apache-2.0
"""Containers and jobs that can open more than they were given, and those that were given it all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuiso.devfilter.insn import pack
from gpuiso.policy.rule import Rule
from tests.devfilter import layouts
from tests.doctor.findings import map_files, severities
from tests.records import UUIDS, RecordMaker

ID = "0123456789abcdef" * 4
DOCKER = f"/docker/{ID}"
POD = f"/kubepods/burstable/pod1/{ID}"
LIBCUDA = "/usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04"
FULL, DEFAULT = "000001ffffffffff", "00000000a80425fb"


def process(maker: RecordMaker, env: dict[str, str], cgroup: str = DOCKER, *, caps: str = DEFAULT, **more: Any) -> None:
    maker.add_process(7, env, cgroup=cgroup, **more)
    maker.files["/proc/7/status"] = str(maker.files["/proc/7/status"]).replace(FULL, caps)
    map_files(maker, 7, LIBCUDA)
    if not more.get("descriptors"):
        maker.nodes["/proc/7/fd/0"] = {"path": "/proc/7/fd/0", "type": "l", "target": "/dev/null"}
    parts = cgroup.strip("/").split("/")
    for end in range(1, len(parts) + 1):
        maker.cgroups["/" + "/".join(parts[:end])] = {"device_programs": []}


def exposed(maker: RecordMaker, pid: int | None = None) -> list[tuple[str, str]]:
    names = ("GPU-PRIV", "GPU-IMG", "GPU-SLURM", "GPU-DAEMON")
    return [each for each in severities(maker, pid) if each[0].startswith(names)]


@pytest.mark.parametrize(
    ("value", "caps", "asked", "expected"),
    [
        (UUIDS[0], FULL, False, [("GPU-PRIV-EXPOSE", "warning")]),
        (UUIDS[0], DEFAULT, False, []),
        ("all", FULL, False, []),
        (",".join(UUIDS), FULL, True, []),
        ("void", FULL, False, []),
        ("void", FULL, True, [("GPU-PRIV-EXPOSE", "info")]),
    ],
)
def test_privileged(tmp_path: Path, value: str, caps: str, asked: bool, expected: list[tuple[str, str]]) -> None:
    maker = RecordMaker(tmp_path)
    process(maker, {"NVIDIA_VISIBLE_DEVICES": value}, caps=caps)
    assert exposed(maker, 7 if asked else None) == expected


def test_docker_says_that_it_is_not_privileged(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    process(maker, {"NVIDIA_VISIBLE_DEVICES": UUIDS[0]}, caps=FULL)
    maker.tools["docker.json"] = {"containers": {ID: {"Name": "/a", "HostConfig": {"Privileged": False}}}}
    assert exposed(maker) == []


def test_a_process_of_the_host_is_no_container(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    process(maker, {"NVIDIA_VISIBLE_DEVICES": UUIDS[0]}, "/user.slice", caps=FULL)
    assert exposed(maker, 7) == []


@pytest.mark.parametrize(
    ("value", "cgroup", "expected"),
    [
        ("all", POD, [("GPU-IMG-NVD-ALL", "warning")]),
        (",".join(UUIDS), POD, []),
        ("all", DOCKER, []),
        ("void", POD, []),
    ],
)
def test_an_image_that_takes_all(tmp_path: Path, value: str, cgroup: str, expected: list[tuple[str, str]]) -> None:
    maker = RecordMaker(tmp_path)
    process(maker, {"NVIDIA_VISIBLE_DEVICES": value}, cgroup)
    assert exposed(maker) == expected


def test_one_finding_for_a_container(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    env = {"NVIDIA_VISIBLE_DEVICES": "all"}
    process(maker, env, POD, descriptors=("/dev/nvidia0",))
    maker.add_process(8, env, cgroup=POD, descriptors=("/dev/nvidia1",))
    map_files(maker, 8, LIBCUDA)
    assert exposed(maker) == [("GPU-IMG-NVD-ALL", "warning")]


SLURM = "/system.slice/slurmstepd.scope/job_5/step_0"


@pytest.mark.parametrize(
    ("conf", "env", "expected"),
    [
        ("ConstrainCores=yes\n", {"CUDA_VISIBLE_DEVICES": "0"}, [("GPU-SLURM-NO-CONSTRAIN", "warning")]),
        ("constraindevices=YES\n", {"CUDA_VISIBLE_DEVICES": "0"}, []),
        ("#ConstrainDevices=yes\n", {"CUDA_VISIBLE_DEVICES": "0"}, [("GPU-SLURM-NO-CONSTRAIN", "warning")]),
        ("ConstrainCores=yes\n", {"CUDA_VISIBLE_DEVICES": "0,1"}, []),
        ("ConstrainCores=yes\n", {}, []),
        (None, {"CUDA_VISIBLE_DEVICES": "0"}, []),
    ],
)
def test_slurm(tmp_path: Path, conf: str | None, env: dict[str, str], expected: list[tuple[str, str]]) -> None:
    maker = RecordMaker(tmp_path)
    maker.files["/etc/slurm/cgroup.conf"] = conf
    process(maker, {"SLURM_JOB_ID": "5", **env}, SLURM)
    assert exposed(maker) == expected


def test_a_job_whose_devices_are_constrained_in_another_way(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    maker.files["/etc/slurm/cgroup.conf"] = "ConstrainCores=yes\n"
    process(maker, {"SLURM_JOB_ID": "5", "CUDA_VISIBLE_DEVICES": "0"}, SLURM)
    rules = [Rule(True, "a", None, None, "rwm"), Rule(False, "c", 195, 1, "rwm")]
    program = {"id": 9, "name": "", "tag": "0", "attach_flags": 0, "insns": pack(layouts.runc(rules)).hex()}
    maker.cgroups[SLURM] = {"device_programs": [program]}
    assert exposed(maker) == []


def client(maker: RecordMaker, words: str, *, limited: bool) -> None:
    process(maker, {})
    maker.tools["docker.json"] = {"containers": {ID: {"Name": "/train", "HostConfig": {}, "Config": {"Image": "cuda"}}}}
    maker.add_process(90, {}, cgroup="/limits")
    maker.files["/proc/90/comm"] = "docker\n"
    maker.files["/proc/90/cmdline"] = words.replace(" ", "\0")
    rules = [Rule(True, "a", None, None, "rwm"), Rule(False, "c", 195, 1, "rwm")]
    program = {"id": 9, "name": "", "tag": "0", "attach_flags": 0, "insns": pack(layouts.runc(rules)).hex()}
    maker.cgroups["/limits"] = {"device_programs": [program] if limited else []}


@pytest.mark.parametrize(
    ("words", "limited", "expected"),
    [
        ("docker run --rm --name train cuda", True, [("GPU-DAEMON-NOT-IN-CGROUP", "warning")]),
        ("docker run --rm cuda python3", True, [("GPU-DAEMON-NOT-IN-CGROUP", "warning")]),
        ("docker run --rm --name train cuda", False, []),
        ("docker run --rm --name other image", True, []),
        ("docker logs train", True, []),
    ],
)
def test_a_container_outside_of_the_cgroup(
    tmp_path: Path, words: str, limited: bool, expected: list[tuple[str, str]]
) -> None:
    maker = RecordMaker(tmp_path)
    client(maker, words, limited=limited)
    assert exposed(maker, 7) == expected
    assert exposed(maker) == []
