# SPDX-License-Identifier: Apache-2.0
"""What the doctor calls healthy, and what only looks so."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuiso.cli.render.report import verdict
from gpuiso.doctor.engine import Report, examine
from gpuiso.errors import Unknown
from gpuiso.host.protocol import Node
from gpuiso.host.recorded import RecordedHost
from tests.doctor.findings import found
from tests.records import RecordMaker


def closed(monkeypatch: pytest.MonkeyPatch, *paths: str) -> None:
    """Makes files that may not be read."""
    text, stat = RecordedHost.text, RecordedHost.stat

    def closed_text(host: RecordedHost, path: str) -> str | None:
        if path.startswith(paths):
            raise Unknown(path, "not permitted to read it")
        return text(host, path)

    def closed_stat(host: RecordedHost, path: str) -> Node | None:
        if path.startswith(paths):
            raise Unknown(path, "not permitted to read it")
        return stat(host, path)

    monkeypatch.setattr(RecordedHost, "text", closed_text)
    monkeypatch.setattr(RecordedHost, "stat", closed_stat)


def told(report: Report) -> tuple[str, str]:
    return report.verdict, verdict(report).replace(report.machine.host.name, "HOST")


def test_healthy(tmp_path: Path) -> None:
    assert told(examine(RecordMaker(tmp_path).host())) == ("healthy", "healthy: 2 GPUs on HOST")


def test_a_missing_node_that_no_rule_could_judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maker = RecordMaker(tmp_path)
    maker.nodes.pop("/dev/nvidia-uvm")
    closed(monkeypatch, "/proc/modules")
    state, line = told(examine(maker.host()))
    assert state == "incomplete"
    assert line.startswith("nothing found wrong, ")
    assert line.endswith(" rules could not be examined: 2 GPUs on HOST")


def test_nodes_that_may_not_be_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed(monkeypatch, "/dev/nvidia")
    assert examine(RecordMaker(tmp_path).host()).verdict == "incomplete"


def test_a_process_that_was_asked_about_and_not_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maker = RecordMaker(tmp_path)
    maker.add_process(42, {"CUDA_VISIBLE_DEVICES": "0"})
    closed(monkeypatch, "/proc/42/environ")
    assert examine(maker.host(), pid=42).verdict == "incomplete"
    assert examine(maker.host()).verdict == "healthy"


def test_a_record_that_lacks_much_is_not_unsure(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    for path in ("/proc/modules", "/proc/driver/nvidia/params", "/proc/driver/nvidia/version"):
        maker.files.pop(path)
    assert examine(maker.host()).verdict == "healthy"


def test_a_driver_whose_directories_are_hidden(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    for path in [path for path in maker.files if path.startswith(("/proc/driver/", "/sys/"))]:
        maker.files.pop(path)
    for path in [path for path in maker.nodes if path.startswith("/sys/")]:
        maker.nodes.pop(path)
    report = examine(maker.host())
    state, line = told(report)
    assert state == "incomplete"
    assert line == "no GPU can be seen on HOST, though NVIDIA's driver is loaded: its /proc and /sys are hidden"
    assert any(entry.what == "NVIDIA's GPUs" for entry in report.not_examined)


def test_a_block_device_in_place_of_a_gpu(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    maker.add_process(42, {"CUDA_VISIBLE_DEVICES": "0"})
    maker.nodes["/proc/42/root/dev/nvidia0"]["type"] = "b"
    (finding,) = found(maker, "GPU-DEV-NUMBERS", 42)
    assert "/dev/nvidia0 is b 195:0, but the driver registered c 195:0" in finding.cause
