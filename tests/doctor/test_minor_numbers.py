# SPDX-License-Identifier: Apache-2.0
"""Indexes and minors that differ."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doctor.findings import found
from tests.records import UUIDS, RecordMaker


def swapped(directory: Path) -> RecordMaker:
    maker = RecordMaker(directory)
    maker.add_gpu(0, 1, UUIDS[0])
    maker.add_gpu(1, 0, UUIDS[1])
    return maker


def test_a_host_where_they_differ(tmp_path: Path) -> None:
    [finding] = found(swapped(tmp_path), "GPU-INDEX-MINOR-MISMATCH")
    assert finding.severity == "info"
    assert "GPU 0 in PCI order is /dev/nvidia1" in finding.cause


@pytest.mark.parametrize(
    ("value", "minors", "severities"),
    [
        ("1", (1,), ["warning", "info"]),
        ("1", (0,), ["info"]),
        ("0,1", (0, 1), ["info"]),
        ("all", (1,), ["info"]),
        (UUIDS[1], (1,), ["info"]),
        ("7", (1,), ["info"]),
    ],
)
def test_a_container_given_nodes_by_index(
    tmp_path: Path, value: str, minors: tuple[int, ...], severities: list[str]
) -> None:
    maker = swapped(tmp_path)
    nodes = {f"/dev/nvidia{minor}": (195, minor) for minor in minors}
    shared = {"/dev/nvidiactl": (195, 255), "/dev/nvidia-uvm": (238, 0)}
    maker.add_process(7, {"NVIDIA_VISIBLE_DEVICES": value}, own_dev=nodes | shared)
    findings = found(maker, "GPU-INDEX-MINOR-MISMATCH", 7)
    assert [finding.severity for finding in findings] == severities
