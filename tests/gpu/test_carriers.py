# SPDX-License-Identifier: Apache-2.0
"""A node is the GPU whose numbers it carries, whatever it is called."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gpuiso.errors import Unknown
from gpuiso.gpu.carriers import carriers
from gpuiso.gpu.inventory import build_inventory
from gpuiso.host.protocol import Node, NodeType
from tests.records import RecordMaker


def found(tmp_path: Path, nodes: Mapping[str, tuple[NodeType, int, int]]) -> list[tuple[str | None, str | None]]:
    def stat(path: str) -> Node | None:
        if path not in nodes:
            return None
        kind, major, minor = nodes[path]
        return Node(path, kind, 0o666, major=major, minor=minor)

    gpus = build_inventory(RecordMaker(tmp_path).host()).gpus
    return [(each.path, each.note) for each in carriers(gpus, stat)]


def test_the_usual_names(tmp_path: Path) -> None:
    nodes: Mapping[str, tuple[NodeType, int, int]] = {"/dev/nvidia0": ("c", 195, 0), "/dev/nvidia1": ("c", 195, 1)}
    assert found(tmp_path, nodes) == [("/dev/nvidia0", None), ("/dev/nvidia1", None)]


def test_swapped(tmp_path: Path) -> None:
    nodes: Mapping[str, tuple[NodeType, int, int]] = {"/dev/nvidia0": ("c", 195, 1), "/dev/nvidia1": ("c", 195, 0)}
    assert found(tmp_path, nodes) == [
        ("/dev/nvidia1", "GPU 0 is 195:0, which is not /dev/nvidia0 but /dev/nvidia1 here"),
        ("/dev/nvidia0", "GPU 1 is 195:1, which is not /dev/nvidia1 but /dev/nvidia0 here"),
    ]


def test_other_numbers_a_block_device_and_none(tmp_path: Path) -> None:
    assert found(tmp_path / "a", {"/dev/nvidia0": ("c", 1, 3), "/dev/nvidia1": ("b", 195, 1)}) == [
        (None, "GPU 0 is 195:0, and /dev/nvidia0 is c 1:3: it does not open that GPU"),
        (None, "GPU 1 is 195:1, and /dev/nvidia1 is b 195:1: it does not open that GPU"),
    ]
    assert found(tmp_path / "b", {})[0] == (None, "GPU 0 is 195:0, and /dev/nvidia0 does not exist")


def test_a_view_that_cannot_be_seen_says_nothing(tmp_path: Path) -> None:
    def stat(path: str) -> Node | None:
        raise Unknown(path, "not permitted to read it")

    assert carriers(build_inventory(RecordMaker(tmp_path).host()).gpus, stat) == ()
