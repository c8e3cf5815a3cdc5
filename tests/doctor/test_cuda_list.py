# SPDX-License-Identifier: Apache-2.0
"""Tokens that end or shorten CUDA_VISIBLE_DEVICES, and values that are fine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doctor.job import PID, Job, alarms
from tests.records import UUIDS

FIRST, SECOND = UUIDS
CVD = "CUDA_VISIBLE_DEVICES"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", {"GPU-CVD-EMPTY": "error"}),
        (" ", {"GPU-CVD-EMPTY": "error"}),
        ("-1", {"GPU-CVD-NEGATIVE": "error"}),
        ("-1,0", {"GPU-CVD-NEGATIVE": "error"}),
        ("0,-1,1", {"GPU-CVD-NEGATIVE": "warning"}),
        ("all", {"GPU-CVD-BADTOKEN": "error"}),
        ("NoDevFiles", {"GPU-CVD-BADTOKEN": "error"}),
        ('"0"', {"GPU-CVD-BADTOKEN": "error"}),
        ("[0, 1]", {"GPU-CVD-BADTOKEN": "error"}),
        ("0,,1", {"GPU-CVD-BADTOKEN": "warning"}),
        (",1", {"GPU-CVD-BADTOKEN": "error"}),
        ("0,gpu1", {"GPU-CVD-BADTOKEN": "warning"}),
        ("0-1", {"GPU-CVD-BADTOKEN": "warning"}),
        ("0;1", {"GPU-CVD-BADTOKEN": "warning"}),
        ("0 1", {"GPU-CVD-BADTOKEN": "warning"}),
        ("0x1", {"GPU-CVD-BADTOKEN": "warning"}),
        (f"0,{SECOND}", {"GPU-CVD-BADTOKEN": "warning"}),
        ("GPU-abcd", {"GPU-CVD-BADTOKEN": "error"}),
        (f" {FIRST}", {"GPU-CVD-BADTOKEN": "error"}),
        (FIRST.replace("GPU-", "gpu-"), {"GPU-CVD-BADTOKEN": "error"}),
        (FIRST.removeprefix("GPU-"), {"GPU-CVD-BADTOKEN": "error"}),
        ("2", {"GPU-CVD-OOR": "error"}),
        ("0,1,2", {"GPU-CVD-OOR": "warning"}),
        ("0,0", {"GPU-CVD-DUP": "error"}),
        (f"{FIRST},GPU-1", {"GPU-CVD-DUP": "error"}),
        ("GPU-33333333-3333-3333-3333-333333333333", {"GPU-UUID-STALE": "error"}),
        (f"{FIRST},GPU-33333333-3333-3333-3333-333333333333", {"GPU-UUID-STALE": "warning"}),
        ("MIG-33333333-3333-3333-3333-333333333333", {"GPU-MIG-STALE-UUID": "error"}),
    ],
)
def test_one_fault_is_one_finding(tmp_path: Path, value: str, expected: dict[str, str]) -> None:
    assert alarms(Job(tmp_path, {CVD: value}).rules()) == expected


@pytest.mark.parametrize(
    "value",
    ["0", "0,1", "1,0", " 0, 1", "+1", "0,", "0,1,-1", "1 ", FIRST, f"{SECOND},{FIRST}", "GPU-1,GPU-2", f"{FIRST} "],
)
def test_silent_on_lists_that_work(tmp_path: Path, value: str) -> None:
    job = Job(tmp_path, {CVD: value})
    assert alarms(job.rules()) == {}
    assert job.rules(asked=False) == {}


def test_silent_without_the_variable(tmp_path: Path) -> None:
    assert Job(tmp_path, {"PATH": "/usr/bin"}).rules() == {}


@pytest.mark.parametrize("value", ["", "-1", "NoDevFiles", "none"])
def test_hiding_every_gpu_on_purpose_is_no_alarm_in_the_sweep(tmp_path: Path, value: str) -> None:
    found = Job(tmp_path, {CVD: value}).rules(asked=False)
    assert len(found) == 1
    assert alarms(found) == {}


def test_workers_that_repeat_their_parent_add_nothing(tmp_path: Path) -> None:
    job = Job(tmp_path, {CVD: "0,0"})
    for pid in range(PID + 1, PID + 9):
        job.add(pid, {CVD: "0,0"}, ppid=PID)
    found = [f for f in job.findings(asked=False) if f.rule.id == "GPU-CVD-DUP"]
    assert [finding.target.pid for finding in found] == [PID]
    assert job.rules(pid=PID + 3) == {"GPU-CVD-DUP": "error"}, "a worker that is asked about has its own"


def test_the_fix_of_a_range_names_every_gpu(tmp_path: Path) -> None:
    (finding,) = (f for f in Job(tmp_path, {CVD: "0-1"}).findings() if f.rule.id == "GPU-CVD-BADTOKEN")
    assert finding.fix[0].command == f"export {CVD}={FIRST},{SECOND}"


def test_a_fix_does_not_run_what_the_value_holds(tmp_path: Path) -> None:
    (finding,) = (f for f in Job(tmp_path, {CVD: "0,-1,$(reboot)"}).findings() if f.rule.id == "GPU-CVD-NEGATIVE")
    assert finding.fix[0].command == f"export {CVD}='0,$(reboot)'"
    job = Job(tmp_path / "other", {CVD: "0,-1,1\x1b[2J"})
    (finding,) = (f for f in job.findings() if f.rule.id == "GPU-CVD-NEGATIVE")
    assert finding.fix[0].command is None
