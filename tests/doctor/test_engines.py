# SPDX-License-Identifier: Apache-2.0
"""Engines that are set up wrongly, containers that did not start, and hosts where nothing of that is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.doctor.findings import found, severities
from tests.records import UUIDS, RecordMaker

ID = "ab" * 32
GPUS = {"Driver": "", "Count": -1, "DeviceIDs": None, "Capabilities": [["gpu"]]}
NO_DRIVER = 'could not select device driver "" with capabilities: [[gpu]]'


def docker(maker: RecordMaker, error: str = "", *, running: bool = False, **host: Any) -> None:
    container = {"Id": ID, "Name": "/job", "State": {"Running": running, "Error": error}, "HostConfig": host}
    maker.tools["docker.json"] = {"containers": {ID: container}}


def alarms(maker: RecordMaker) -> list[tuple[str, str]]:
    return [each for each in severities(maker) if each[1] != "info"]


def test_the_toolkit_was_installed_since(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    docker(maker, NO_DRIVER, DeviceRequests=[GPUS])
    maker.nodes["/usr/bin/nvidia-container-runtime-hook"] = {
        "path": "/usr/bin/nvidia-container-runtime-hook",
        "type": "f",
        "mode": "0755",
    }
    [finding] = found(maker, "GPU-NVCT-NO-RUNTIME")
    assert [fix.command for fix in finding.fix] == ["sudo systemctl restart docker"]


def test_it_is_not_known_whether_the_toolkit_is_installed(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    docker(maker, NO_DRIVER, DeviceRequests=[GPUS])
    [finding] = found(maker, "GPU-NVCT-NO-RUNTIME")
    assert [each.source for each in finding.evidence] == ["docker inspect job: State.Error"]


def test_an_old_error_of_a_container_that_runs(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    docker(maker, NO_DRIVER, running=True, DeviceRequests=[GPUS])
    assert severities(maker) == []


def test_the_driver_was_updated_since_the_image_asked(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    docker(maker, "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.8, please update")
    maker.tools["nvml.json"] = {"driver_version": "580.159.04", "cuda_version": "13.0", "gpus": []}
    assert severities(maker) == []
    maker.tools["nvml.json"]["cuda_version"] = "12.4"
    assert severities(maker) == [("GPU-REQUIRE-CUDA", "error")]


@pytest.mark.parametrize(
    ("count", "devices", "expected"),
    [
        (1, ["0"], [("GPU-DOCKER-GPUS-SYNTAX", "error")]),
        (0, None, [("GPU-DOCKER-GPUS-SYNTAX", "warning")]),
        (0, ["0", "1"], []),
        (2, None, []),
        (-1, None, []),
        (0, [UUIDS[0]], []),
    ],
)
def test_what_gpus_says(tmp_path: Path, count: int, devices: list[str] | None, expected: list[tuple[str, str]]) -> None:
    maker = RecordMaker(tmp_path)
    docker(maker, running=True, DeviceRequests=[{**GPUS, "Count": count, "DeviceIDs": devices}])
    assert severities(maker) == expected


def test_the_fix_quotes_the_list_twice(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    docker(maker, DeviceRequests=[{**GPUS, "Count": 3, "DeviceIDs": ["2"]}])
    [finding] = found(maker, "GPU-DOCKER-GPUS-SYNTAX")
    assert finding.fix[0].command == """docker run --gpus '"device=2,3"' IMAGE"""


def test_a_rootless_user_without_a_hook(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    maker.nodes["/run/user/1000/libpod"] = {"path": "/run/user/1000/libpod", "type": "d"}
    maker.files["/etc/nvidia-container-runtime/config.toml"] = "[nvidia-container-cli]\n#no-cgroups = false\n"
    assert severities(maker) == []


def test_a_hook_without_a_rootless_user(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    maker.files["/etc/nvidia-container-runtime/config.toml"] = "[nvidia-container-cli]\n#no-cgroups = false\n"
    maker.files["/usr/share/containers/oci/hooks.d/oci-nvidia-hook.json"] = json.dumps(
        {"hook": {"path": "/usr/bin/nvidia-container-runtime-hook"}}
    )
    maker.nodes["/run/user/0/libpod"] = {"path": "/run/user/0/libpod", "type": "d"}
    maker.nodes["/run/user/1000"] = {"path": "/run/user/1000", "type": "d"}
    assert severities(maker) == []


def test_a_privileged_lxc_container_may_write_rules(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    maker.files["/run/systemd/container"] = "lxc\n"
    maker.files["/proc/self/uid_map"] = "0 0 4294967295\n"
    maker.files["/etc/nvidia-container-runtime/config.toml"] = "[nvidia-container-cli]\n"
    maker.files["/etc/docker/daemon.json"] = '{"runtimes": {"nvidia": {}}}'
    maker.tools["docker.json"] = {"info": {"Runtimes": {"nvidia": {}}}, "containers": {}}
    assert severities(maker) == []
    maker.files["/proc/self/uid_map"] = "0 100000 65536\n"
    assert severities(maker) == [("GPU-NESTED-CGROUP-EPERM", "warning")]


def test_k3s_that_found_the_runtime_by_itself(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    maker.files["/var/lib/rancher/k3s/agent/etc/containerd/config.toml"] = "[plugins.x.runtimes.nvidia]\n"
    maker.files["/etc/containerd/config.toml"] = 'BinaryName = "/usr/bin/nvidia-container-runtime"\n'
    assert severities(maker) == []


def test_a_snap_that_brings_a_runtime(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    maker.tools["docker.json"] = {
        "info": {"DockerRootDir": "/var/snap/docker/common/var-lib-docker", "Runtimes": {"nvidia": {}, "runc": {}}}
    }
    assert severities(maker) == [("GPU-DOCKER-SNAP", "info")]


@pytest.mark.parametrize("context", ["default", "colima", None, 7])
def test_other_contexts(tmp_path: Path, context: object) -> None:
    maker = RecordMaker(tmp_path)
    maker.files["/root/.docker/config.json"] = json.dumps({"currentContext": context})
    assert severities(maker) == []


@pytest.mark.parametrize("text", ["", "[]", "{", '{"currentContext": []}'])
def test_a_client_configuration_of_another_form(tmp_path: Path, text: str) -> None:
    maker = RecordMaker(tmp_path)
    maker.files["/root/.docker/config.json"] = text
    assert severities(maker) == []


def test_nothing_of_engines_matters_without_gpus(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    for path in [path for path in maker.files if "driver/nvidia" in path or "/sys/bus/pci" in path]:
        del maker.files[path]
    for path in list(maker.nodes):
        del maker.nodes[path]
    maker.files["/proc/devices"] = "Character devices:\n  1 mem\n"
    maker.files["/proc/modules"] = ""
    docker(maker, NO_DRIVER, DeviceRequests=[GPUS])
    assert alarms(maker) == []
