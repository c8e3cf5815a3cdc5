# SPDX-License-Identifier: Apache-2.0
"""``gpuiso rules check`` on files that say who may have which GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import check_schema, run
from tests.support import REPOSITORY

HOST = str(REPOSITORY / "examples/hosts/h200-x4")


def test_the_example_is_fine(capsys: pytest.CaptureFixture[str]) -> None:
    shown = run(capsys, "rules", "check", str(REPOSITORY / "examples/run/grants.yaml"), "--from", HOST)
    assert (shown.code, shown.out.splitlines()[0].rpartition(": ")[2]) == (0, "fine")
    lines = {line.split()[0]: line for line in shown.out.splitlines()[1:] if line[:1].isdigit()}
    assert "group students" in lines["5"]
    assert "user alice, user bob" in lines["11"]
    assert "slice batch.slice" in lines["13"]


def test_what_each_grant_comes_to(capsys: pytest.CaptureFixture[str]) -> None:
    file = str(REPOSITORY / "examples/run/grants.yaml")
    found = run(capsys, "rules", "check", file, "--from", HOST, "--json").json
    check_schema(found, "rules-check")
    students, friends, batch, research = found["grants"]
    assert (students["groups"], len(students["gpus"]), students["most"]) == (["students"], 2, 2)
    assert (students["gpu.max"], students["share"]) == ("50000 100000", False)
    assert (friends["users"], len(friends["gpus"]), friends["most"]) == (["alice", "bob"], 4, None)
    assert (batch["slices"], batch["most"]) == (["batch.slice"], 1)
    assert (research["containers"], research["gpus"]) == (["com.example.team=research"], students["gpus"][:1])
    unknown = run(capsys, "rules", "check", file, "--syntax", "--json").json["grants"]
    assert [grant["gpus"] for grant in unknown] == [None] * 4
    assert "nvidia:0, nvidia:1" in run(capsys, "rules", "check", file, "--syntax").out


def test_no_grants_are_grants_too(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("gpuiso: 1\ngrants: []\n")
    shown = run(capsys, "rules", "check", str(tmp_path / "p.yaml"), "--from", HOST)
    assert (shown.code, shown.out.splitlines()[1]) == (0, "no grants: nobody but root gets a GPU")


def test_a_gpu_that_is_not_here_is_a_warning(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text("gpuiso: 1\ngrants:\n- users: [alice]\n  gpus: [0, 7]\n")
    found = run(capsys, "rules", "check", str(file), "--from", HOST, "--json")
    check_schema(found.json, "rules-check")
    assert found.code == 0
    assert [entry["message"] for entry in found.json["warnings"]] == ["this host has no GPU 7"]
    assert run(capsys, "rules", "check", str(file), "--syntax", "--json").json["warnings"] == []


def test_what_is_wrong_ends_with_2(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text("gpuiso: 1\ngrants:\n- users: [alice]\n  most: some\n")
    found = run(capsys, "rules", "check", str(file), "--json")
    check_schema(found.json, "rules-check")
    assert found.code == 2
    assert [(entry["line"], entry["message"]) for entry in found.json["errors"]] == [
        (4, "expected a whole number, not 'some'")
    ]
