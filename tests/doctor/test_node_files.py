# SPDX-License-Identifier: Apache-2.0
"""The host's own nodes: which fault is told, how bad it is, and what is no fault."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.doctor.findings import found, severities
from tests.records import RecordMaker

NODES = ("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
CONTAINER_DEV = "1 0 0:40 / / rw - overlay overlay rw\n2 1 0:41 / /dev rw,nosuid - tmpfs tmpfs rw\n"


def without(maker: RecordMaker, *paths: str) -> None:
    for path in paths:
        del maker.nodes[path]


def modprobe(maker: RecordMaker, mode: str = "4755", uid: int = 0) -> None:
    path = "/usr/bin/nvidia-modprobe"
    maker.nodes[path] = {"path": path, "type": "f", "mode": mode, "uid": uid, "gid": 0}


def test_a_healthy_host(tmp_path: Path) -> None:
    assert severities(RecordMaker(tmp_path)) == []


def test_all_nodes_missing_is_one_finding(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    without(maker, *NODES)
    assert severities(maker) == [("GPU-LAZY-NODES", "error")]


def test_one_gpu_node_missing_is_named(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    without(maker, "/dev/nvidia1")
    [finding] = found(maker, "GPU-LAZY-NODES")
    assert "/dev/nvidia1" in finding.cause
    assert "/dev/nvidia0" not in finding.cause
    assert finding.fix[0].command == "sudo sh -c 'mknod -m 0666 /dev/nvidia1 c 195 1'"


def test_the_module_is_loaded_by_the_fix(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    maker.files["/proc/devices"] = str(maker.files["/proc/devices"]).replace("238 nvidia-uvm\n", "")
    without(maker, "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
    [finding] = found(maker, "GPU-UVM-MISSING")
    assert "modprobe nvidia-uvm && mknod -m 0666 /dev/nvidia-uvm c $(" in str(finding.fix[0].command)


def test_a_node_left_over_without_its_module(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    maker.files["/proc/devices"] = str(maker.files["/proc/devices"]).replace("238 nvidia-uvm\n", "")
    [finding] = found(maker, "GPU-UVM-MISSING")
    assert "left over" in finding.evidence[1].says
    assert found(maker, "GPU-UVM-MAJOR-MISMATCH") == []


@pytest.mark.parametrize(
    ("mode", "uid", "severity"), [("4755", 0, "info"), ("0755", 0, "error"), ("4755", 1000, "error")]
)
def test_nodes_that_are_made_on_demand(tmp_path: Path, mode: str, uid: int, severity: str) -> None:
    maker = RecordMaker(tmp_path)
    modprobe(maker, mode, uid)
    without(maker, "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
    assert severities(maker) == [("GPU-UVM-MISSING", severity)]


def test_a_host_of_virtual_gpus_needs_no_uvm(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    maker.files["/proc/modules"] = "nvidia_vgpu_vfio 1 0 - Live 0x0\nnvidia 1 1 nvidia_vgpu_vfio, Live 0x0\n"
    without(maker, "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
    assert severities(maker) == []


@pytest.mark.parametrize(("missing", "expected"), [(NODES[1:2], []), (NODES, [("GPU-DEV-MISSING-NS", "warning")])])
def test_inside_a_container(tmp_path: Path, missing: tuple[str, ...], expected: list[Any]) -> None:
    maker = RecordMaker(tmp_path)
    maker.files["/proc/self/mountinfo"] = CONTAINER_DEV
    without(maker, *missing)
    assert severities(maker) == expected


def test_without_the_driver_no_node_is_missed(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    maker.files["/proc/devices"] = "Character devices:\n  1 mem\n"
    without(maker, *NODES)
    assert severities(maker) == []


@pytest.mark.parametrize(
    ("path", "numbers", "expected"),
    [
        ("/dev/nvidia-uvm", (510, 0), ("GPU-UVM-MAJOR-MISMATCH", "error")),
        ("/dev/nvidia-uvm", (238, 1), ("GPU-UVM-MAJOR-MISMATCH", "error")),
        ("/dev/nvidia-uvm-tools", (510, 1), ("GPU-UVM-MAJOR-MISMATCH", "warning")),
        ("/dev/nvidia1", (195, 0), ("GPU-DEV-NUMBERS", "error")),
        ("/dev/nvidiactl", (0, 255), ("GPU-DEV-NUMBERS", "error")),
    ],
)
def test_wrong_numbers(tmp_path: Path, path: str, numbers: tuple[int, int], expected: tuple[str, str]) -> None:
    maker = RecordMaker(tmp_path)
    maker.add_node(path, *numbers)
    assert severities(maker) == [expected]


def test_a_regular_file_in_place_of_a_node(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    maker.nodes["/dev/nvidiactl"] = {"path": "/dev/nvidiactl", "type": "f"}
    [finding] = found(maker, "GPU-DEV-NUMBERS")
    assert "a regular file" in finding.cause


@pytest.mark.parametrize(
    ("mode", "gid", "paths", "severity"),
    [
        ("0600", 0, NODES[:2], "error"),
        ("0600", 0, NODES[:1], "warning"),
        ("0600", 0, NODES[2:3], "error"),
        ("0660", 44, NODES[:3], "warning"),
    ],
)
def test_nodes_closed_behind_the_drivers_back(
    tmp_path: Path, mode: str, gid: int, paths: tuple[str, ...], severity: str
) -> None:
    maker = RecordMaker(tmp_path)
    for path in paths:
        maker.nodes[path].update(mode=mode, gid=gid)
    assert severities(maker) == [("GPU-DEV-MODE", severity)]


@pytest.mark.parametrize(
    "parameters",
    ["ModifyDeviceFiles: 1\nDeviceFileGID: 44\nDeviceFileMode: 432\n", "ModifyDeviceFiles: 0\nDeviceFileMode: 438\n"],
)
def test_nodes_closed_on_purpose(tmp_path: Path, parameters: str) -> None:
    maker = RecordMaker(tmp_path)
    maker.files["/proc/driver/nvidia/params"] = parameters
    for path in NODES:
        maker.nodes[path].update(mode="0660", gid=44)
    assert severities(maker) == []


def test_capability_nodes_are_closed_by_design(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    maker.files["/proc/driver/nvidia/capabilities/mig/config"] = "DeviceFileMinor: 1\nDeviceFileMode: 256\n"
    maker.add_node("/dev/nvidia-caps/nvidia-cap1", 241, 1, "0400")
    assert severities(maker) == []
