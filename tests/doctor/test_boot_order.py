# SPDX-License-Identifier: Apache-2.0
"""Containers that Docker started before the nodes existed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doctor.findings import found, severities
from tests.records import RecordMaker

LSTAT = 'adding custom device "/dev/nvidia-uvm-tools": lstat /dev/nvidia-uvm-tools: no such file or directory'


def docker(maker: RecordMaker, error: str, *, running: bool = False) -> None:
    container = {"Name": "/it's mine", "State": {"Running": running, "Error": error}}
    maker.tools["docker.json"] = {"info": {}, "containers": {"c0ffee": container}}


@pytest.mark.parametrize(
    "error", [LSTAT, 'failed to stat CDI host device "/dev/nvidia-uvm": no such file or directory']
)
def test_a_failed_start(tmp_path: Path, error: str) -> None:
    maker = RecordMaker(tmp_path)
    docker(maker, error)
    [finding] = found(maker, "GPU-BOOT-ORDER")
    assert finding.target.container == "c0ffee"
    assert finding.fix[0].command == """docker start 'it'"'"'s mine'"""


@pytest.mark.parametrize("error", ["", 'exec: "/dev/null": no such file or directory', "out of memory"])
def test_other_failures(tmp_path: Path, error: str) -> None:
    maker = RecordMaker(tmp_path)
    docker(maker, error)
    assert severities(maker) == []


def test_a_container_that_runs_again(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    docker(maker, LSTAT, running=True)
    assert severities(maker) == []


def test_a_node_that_is_still_missing_is_the_cause(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    docker(maker, LSTAT)
    del maker.nodes["/dev/nvidia-uvm-tools"], maker.nodes["/dev/nvidia-uvm"]
    assert severities(maker) == [("GPU-UVM-MISSING", "error")]
