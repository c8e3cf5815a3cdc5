# SPDX-License-Identifier: Apache-2.0
"""WSL 2."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuiso.doctor.engine import examine
from gpuiso.host.recorded import RecordedHost
from tests.doctor.findings import map_files
from tests.records import RecordMaker

LIBRARY = "/usr/lib/wsl/lib/libcuda.so.1"


def wsl(directory: Path, *paths: str) -> RecordMaker:
    """WSL with these of its files; a process 7 that sees its whole /dev."""
    maker = RecordMaker(directory)
    maker.files = {"/proc/devices": "Character devices:\n  1 mem\n 10 misc\n", "/proc/modules": ""}
    maker.nodes = {}
    maker.add_node("/dev/null", 1, 3)
    for path in paths:
        if path == "/dev/dxg":
            maker.add_node(path, 10, 125)
        else:
            maker.nodes[path] = {"path": path, "type": "f"}
    maker.nodes["/usr/lib/wsl"] = {"path": "/usr/lib/wsl", "type": "d"}
    maker.add_process(7)
    map_files(maker, 7, "/usr/bin/python3")
    return maker


def rules(maker: RecordMaker, pid: int | None = None) -> list[tuple[str, str]]:
    directory = maker.write()
    record = json.loads((directory / "record.json").read_text())
    kernel = "5.15.167.4-microsoft-standard-WSL2"
    (directory / "record.json").write_text(json.dumps(record | {"kernel": kernel}))
    report = examine(RecordedHost(str(directory)), pid=pid)
    return [(finding.rule.id, finding.title) for finding in report.findings]


@pytest.mark.parametrize("paths", [("/dev/dxg", LIBRARY), ("/dev/dxg",), ()])
def test_nothing_wrong(tmp_path: Path, paths: tuple[str, ...]) -> None:
    assert rules(wsl(tmp_path, *paths)) == []


def test_libraries_without_the_device(tmp_path: Path) -> None:
    [(rule, _)] = rules(wsl(tmp_path, LIBRARY))
    assert rule == "GPU-WSL-DXG"


def test_a_linux_driver(tmp_path: Path) -> None:
    maker = wsl(tmp_path, "/dev/dxg", LIBRARY, "/usr/lib/x86_64-linux-gnu/libcuda.so.535.183.01")
    path = "/usr/lib/x86_64-linux-gnu/libcuda.so.1"
    maker.nodes[path] = {"path": path, "type": "l", "target": "libcuda.so.535.183.01"}
    assert rules(maker) == [("GPU-WSL-DXG", "A Linux driver hides the libraries of WSL")]
    maker.nodes[path]["target"] = LIBRARY
    assert rules(maker) == []


def test_a_process_without_the_device(tmp_path: Path) -> None:
    maker = wsl(tmp_path, "/dev/dxg", LIBRARY)
    assert rules(maker, 7) == []
    del maker.nodes["/proc/7/root/dev/dxg"]
    assert rules(maker, 7) == [("GPU-WSL-DXG", "The process cannot open WSL's GPU device")]


def test_elsewhere_the_device_is_not_looked_for(tmp_path: Path) -> None:
    report = examine(wsl(tmp_path, LIBRARY).host(), pid=7)
    assert report.findings == ()
