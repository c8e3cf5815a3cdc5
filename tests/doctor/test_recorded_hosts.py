# SPDX-License-Identifier: Apache-2.0
"""Every recorded host below tests/data/hosts: the fault is found, exactly, and its healthy twin is silent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpuiso.doctor.engine import examine
from gpuiso.host import open_host
from tests.support import SHARED, needs_shared

HOSTS = Path(__file__).parent.parent / "data" / "hosts"
CASES = sorted(path.parent.name for path in HOSTS.glob("*/case.json"))


def case(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((HOSTS / name / "case.json").read_text())
    return loaded


def found(record: Path, pid: int | None) -> dict[str, str]:
    report = examine(open_host(str(record)), pid=pid)
    # Most severe first: a rule may hold for a process and, less badly, for the host.
    return {finding.rule.id: finding.severity for finding in reversed(report.findings)}


@pytest.mark.parametrize("name", CASES)
def test_the_fault_is_found(name: str) -> None:
    expected = case(name)
    assert found(HOSTS / name / "faulty", expected["pid"]) == expected["rules"]


@pytest.mark.parametrize("name", CASES)
def test_the_healthy_twin_is_silent(name: str) -> None:
    alarms = found(HOSTS / name / "healthy", case(name)["pid"])
    assert {rule for rule, severity in alarms.items() if severity != "info"} == set()


def test_there_are_enough() -> None:
    assert len(CASES) >= 30


@needs_shared
def test_a_recorded_host_with_four_h200_is_healthy() -> None:
    assert SHARED is not None
    report = examine(open_host(str(SHARED / "hosts" / "h200-x4")))
    assert report.findings == ()
    assert [gpu.index for gpu in report.machine.nvidia] == [0, 1, 2, 3]
