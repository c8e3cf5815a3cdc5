# SPDX-License-Identifier: Apache-2.0
"""Processes that look the same to every check: one is examined, all are counted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gpuiso.doctor.engine import examine
from gpuiso.doctor.finding import Finding
from tests.records import RecordMaker

NAME = "CUDA_VISIBLE_DEVICES"


def place(maker: RecordMaker, pid: int) -> None:
    """Records the namespaces and the program of a process, without which none is like another."""
    for link, target in (("ns/mnt", "mnt:[1]"), ("ns/user", "user:[2]"), ("exe", "/bin/sleep")):
        path = f"/proc/{pid}/{link}"
        maker.nodes[path] = {"path": path, "type": "l", "target": target}


def workers(maker: RecordMaker, pids: range, value: str) -> None:
    for pid in pids:
        maker.add_process(pid, {NAME: value}, descriptors=("/dev/null",))
        place(maker, pid)


def test_one_finding_for_all(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    workers(maker, range(100, 130), "7")
    report = examine(maker.host())
    (finding,) = [finding for finding in report.findings if finding.severity == "error"]
    assert finding.target.pid == 100
    assert finding.evidence[-1].source == "29 more processes that look the same"
    assert finding.evidence[-1].says.startswith("the same: 101, 102, ")
    assert set(report.processes) == set(range(100, 130))


def test_another_value_or_parent_is_another_kind(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    workers(maker, range(100, 102), "7")
    workers(maker, range(200, 202), "8")
    workers(maker, range(300, 302), "7")
    for pid in (300, 301):
        status = maker.files[f"/proc/{pid}/status"] or ""
        maker.files[f"/proc/{pid}/status"] = status.replace("PPid:\t1\n", "PPid:\t2\n")
    found = [finding.target.pid for finding in examine(maker.host()).findings if finding.severity == "error"]
    assert found == [100, 200, 300]


def test_what_is_found_is_heard_at_once(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    workers(maker, range(100, 102), "7")
    maker.nodes.pop("/dev/nvidia-uvm")
    told: list[list[str]] = []

    def heard(findings: Sequence[Finding]) -> None:
        told.append([finding.rule.id for finding in findings])

    report = examine(maker.host(), heard=heard)
    assert "GPU-UVM-MISSING" in next(rules for rules in told if rules)
    assert sorted(told[-1]) == sorted(finding.rule.id for finding in report.findings)
