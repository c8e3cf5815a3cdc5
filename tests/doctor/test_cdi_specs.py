# SPDX-License-Identifier: Apache-2.0
"""CDI specifications beside the nodes of the host, the engines, and what containers ask for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.doctor.findings import found, severities
from tests.records import RecordMaker

SPEC = """cdiVersion: {version}
kind: {kind}
devices:
- name: "0"
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
containerEdits:
  deviceNodes:
  - path: /dev/nvidia-uvm
{more}"""


def put(maker: RecordMaker, path: str = "/etc/cdi/nvidia.yaml", **values: Any) -> None:
    defaults = {"version": "0.5.0", "kind": "nvidia.com/gpu", "more": ""}
    maker.files[path] = SPEC.format(**{**defaults, **values})


def test_a_specification_without_numbers(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    put(maker)
    put(maker, "/var/run/cdi/other.yaml", kind="example.com/gpu")
    assert severities(maker) == []


def test_a_stale_file_that_another_one_replaces(tmp_path: Path) -> None:
    """Later directories win, device by device: nobody gets the stale number."""
    maker = RecordMaker(tmp_path)
    put(maker, more="    major: 510\n")
    put(maker, "/var/run/cdi/nvidia.yaml", more="    major: 238\n")
    assert severities(maker) == []
    put(maker, "/var/run/cdi/nvidia.yaml", more="    major: 511\n")
    [finding] = found(maker, "GPU-CDI-STALE-MAJMIN")
    assert {each.source for each in finding.evidence} == {"/var/run/cdi/nvidia.yaml", "/dev/nvidia-uvm"}


def test_where_the_host_s_own_node_is_wrong(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    put(maker, more="    major: 238\n")
    put(maker, "/var/run/cdi/other.yaml", kind="example.com/gpu")
    maker.add_node("/dev/nvidia-uvm", 510, 0)
    assert {rule for rule, _ in severities(maker)} == {"GPU-UVM-MAJOR-MISMATCH"}


def test_a_container_with_a_stale_node_of_no_specification(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    put(maker)
    put(maker, "/var/run/cdi/other.yaml", kind="example.com/gpu")
    own = {"/dev/nvidia0": (195, 0), "/dev/nvidiactl": (195, 255), "/dev/nvidia-uvm": (510, 0)}
    maker.add_process(7, {}, own_dev=own)
    assert ("GPU-UVM-MAJOR-MISMATCH", "error") in severities(maker, 7)


def test_engines_are_asked_only_where_their_version_matters(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    put(maker)
    put(maker, "/var/run/cdi/other.yaml", kind="example.com/gpu")
    answer = {"exit": 0, "stdout": "podman version 4.3.1\n", "stderr": "", "seconds": 0, "timed_out": False}
    maker.tools["commands.json"] = [{"argv": ["podman", "--version"], **answer}]
    assert severities(maker) == []
    put(maker, version="0.7.0", more="  additionalGids: [44]\n")
    assert severities(maker) == [("GPU-CDI-SPEC-VERSION", "warning")]


def asking(maker: RecordMaker, device: str, *, error: bool = True) -> None:
    request = {"Driver": "cdi", "DeviceIDs": [device]}
    message = f"CDI device injection failed: unresolvable CDI devices {device}" if error else ""
    container = {
        "Name": "/job",
        "State": {"Running": False, "Error": message},
        "HostConfig": {"DeviceRequests": [request]},
    }
    maker.tools["docker.json"] = {"containers": {"ab" * 32: container}}


def test_a_device_that_is_there_now(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    put(maker)
    put(maker, "/var/run/cdi/other.yaml", kind="example.com/gpu")
    asking(maker, "nvidia.com/gpu=0")
    assert severities(maker) == []
    asking(maker, "nvidia.com/gpu=9")
    [finding] = found(maker, "GPU-CDI-UNRESOLVABLE")
    assert "has only 0" in finding.cause
    asking(maker, "nvidia.com/gpu=9", error=False)
    assert severities(maker) == [("GPU-CDI-UNRESOLVABLE", "warning")]


def test_a_device_that_two_files_define(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    put(maker)
    put(maker, "/etc/cdi/copy.yaml")
    put(maker, "/var/run/cdi/other.yaml", kind="example.com/gpu")
    asking(maker, "nvidia.com/gpu=0")
    [finding] = found(maker, "GPU-CDI-UNRESOLVABLE")
    assert "both define it" in finding.cause


def test_a_file_that_cannot_be_used(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    maker.files["/etc/cdi/nvidia.yaml"] = "cdiVersion: 0.5.0\nkind: [\n"
    put(maker, "/var/run/cdi/other.yaml", kind="example.com/gpu")
    asking(maker, "nvidia.com/gpu=0")
    [finding] = found(maker, "GPU-CDI-UNRESOLVABLE")
    assert "/etc/cdi/nvidia.yaml cannot be used" in finding.cause


def test_directories_that_nobody_recorded_say_nothing(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    asking(maker, "nvidia.com/gpu=0")
    assert severities(maker) == []
