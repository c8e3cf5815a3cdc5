# SPDX-License-Identifier: Apache-2.0
"""What ``gpuiso repair`` writes into the ledger: a repair of a stranger's program, with what finds it left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuiso.apply.calls import Calls
from gpuiso.apply.plan import Plan
from gpuiso.host.containers import Container
from gpuiso.host.live import LiveHost
from gpuiso.reclaim.ledger import Ledger
from gpuiso.repair.denials import Filters
from gpuiso.repair.diagnose import Diagnosis, Lost
from gpuiso.repair.nodes import GpuNode
from tests.apply.conftest import world as world  # the fixture
from tests.cli.command import run
from tests.repair.test_replace_program import plan as plan  # the fixture
from tests.tiers import requires

pytestmark = requires("kernel")


@pytest.fixture
def ledger(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    lost = Lost(GpuNode("/dev/nvidia0", "c", 195, 0, needed=True, shared=False), "requested", ())
    found = Diagnosis(Container("c" * 64, "docker", "job"), 4711, 17, (lost,), (), Filters(LiveHost(), 1), (), ())
    monkeypatch.setattr("gpuiso.repair.diagnose.find", lambda *_, **__: (found.container, found.pid))
    monkeypatch.setattr("gpuiso.repair.diagnose.diagnose", lambda *_, **__: found)
    monkeypatch.setattr("gpuiso.repair.plan.repair_key", lambda *_: plan.target.key)
    monkeypatch.setattr("gpuiso.repair.plan.plan_repair", lambda *_: plan)
    monkeypatch.setattr("gpuiso.apply.state.State.__init__.__defaults__", (tmp_path / "run",))
    monkeypatch.setattr("gpuiso.reclaim.ledger.Ledger.__init__.__defaults__", (tmp_path / "log/ledger.jsonl",))
    return Ledger()


def entries(ledger: Ledger) -> list[dict[str, Any]]:
    return list(ledger.entries())


def test_a_repair_is_written_down(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "repair", "--container", "job", "--dry-run").code == 0
    assert not ledger.path.exists()
    done = run(capsys, "repair", "--container", "job", "--json")
    assert (done.code, done.json["result"]) == (0, "repaired")
    assert [(entry["event"], entry["result"]) for entry in entries(ledger)] == [
        ("repair", "begun"),
        ("repair", "repaired"),
    ]
    last = entries(ledger)[-1]
    assert (last["container"], last["name"], last["pid"], last["nodes"]) == ("c" * 64, "job", 4711, ["/dev/nvidia0"])
    assert last["operator"]["uid"] == 0
    assert ledger.verify().fault is None


def test_one_that_fails_too(
    ledger: Ledger, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Calls, "prog_replace", fail)
    assert run(capsys, "repair", "--container", "job").code == 7
    assert [entry["result"] for entry in entries(ledger)] == ["begun", "failed"]
    assert "what had been done was undone" in entries(ledger)[-1]["why"]


def test_without_a_ledger_nothing_is_done(ledger: Ledger, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    ledger.path.parent.write_text("")  # a file in its place
    done = run(capsys, "repair", "--container", "job")
    assert (done.code, done.out) == (3, "")
    assert "cannot be written" in done.err
    assert not (tmp_path / "run/policies").exists() or not list((tmp_path / "run/policies").iterdir())
