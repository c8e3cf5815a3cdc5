# SPDX-License-Identifier: Apache-2.0
"""gpuiso reclaim, restore, recover and ledger verify, as a user runs them, with the fake driver."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpuiso.apply.calls import Calls
from gpuiso.apply.state import State
from gpuiso.errors import GpuisoError
from gpuiso.reclaim.cuda import ProcessState
from gpuiso.reclaim.gate import PlaceGate
from gpuiso.reclaim.session import Memo, Progress, Session
from gpuiso.reclaim.target import Target
from tests.cli.command import Result, check_schema, run
from tests.reclaim.test_take import works
from tests.reclaim.world import World, alive, comm, make_session
from tests.tiers import requires

Gpuiso = Callable[..., Result]


@pytest.fixture
def gpuiso(world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Gpuiso:
    """The command line, its files in the world."""

    @contextmanager
    def open_session(host: object, *, rules: bool = True, **unused: Any) -> Iterator[Session]:
        real = (world.directory / "real-gate").exists()
        session = make_session(
            world, PlaceGate(world.host(), Calls(), State(world.directory / "run"), rules=rules) if real else None
        )
        try:
            yield session
        finally:
            session.close()

    session = make_session(world)
    monkeypatch.setattr("gpuiso.reclaim.live.open_session", open_session)
    monkeypatch.setattr("gpuiso.reclaim.live.Records", lambda: session.records)
    monkeypatch.setattr("gpuiso.reclaim.records.Records.__init__.__defaults__", (session.records.directory,))
    monkeypatch.setattr("gpuiso.apply.state.State.__init__.__defaults__", (world.directory / "run",))
    monkeypatch.setattr(
        "gpuiso.reclaim.huge_pages.HugePages.__init__.__defaults__",
        (world.directory / "thp", world.directory / "run"),
    )
    return lambda *arguments: run(capsys, *arguments)


def test_there_and_back(world: World, gpuiso: Gpuiso) -> None:
    pid = world.target(gpu=1, mib=900)
    done = gpuiso("reclaim", "--pid", str(pid))
    assert (done.code, done.err) == (0, "")
    assert f"process {pid} ({comm(pid)}): reclaimed in" in done.out
    assert f"900 MiB free again on {world.uuids[1]}" in done.out
    listed = gpuiso("reclaim", "--list")
    assert str(pid) in listed.out
    assert "reclaimed" in listed.out
    back = gpuiso("restore", "--pid", str(pid))
    assert (back.code, back.err) == (0, "")
    assert f"process {pid} ({comm(pid)}) runs again" in back.out
    assert works(world, pid)
    whole = gpuiso("ledger", "verify", "--file", str(world.directory / "log/ledger.jsonl"))
    assert (whole.code, "4 entries, whole" in whole.out) == (0, True)


def test_as_json(world: World, gpuiso: Gpuiso) -> None:
    pid = world.target(gpu=1, mib=900)
    plan = gpuiso("reclaim", "--pid", str(pid), "--dry-run", "--until", "kill", "--json")
    check_schema(plan.json, "reclaim")
    assert plan.json["processes"][0]["reasons"] == []
    done = gpuiso("reclaim", "--pid", str(pid), "--freeze", "--json")
    check_schema(done.json, "reclaim")
    assert done.json["processes"][0]["memory"] == {world.uuids[1]: 900 << 20}
    assert done.json["processes"][0]["frozen"] is True
    listed = gpuiso("reclaim", "--list", "--json")
    check_schema(listed.json, "reclaim")
    assert [one["phase"] for one in listed.json["reclaimed"]] == ["reclaimed"]
    back = gpuiso("restore", "--all", "--gpu", world.uuids[3], "--json")
    check_schema(back.json, "restore")
    assert back.json["processes"][0]["memory"] == {world.uuids[3]: 900 << 20}
    ledger = gpuiso("ledger", "verify", "--file", str(world.directory / "log/ledger.jsonl"), "--json")
    check_schema(ledger.json, "ledger")


def test_a_tampered_ledger(world: World, gpuiso: Gpuiso) -> None:
    pid = world.target()
    gpuiso("reclaim", "--pid", str(pid))
    path = world.directory / "log/ledger.jsonl"
    path.write_text(path.read_text().replace(f'"pid": {pid}', '"pid": 1', 1))
    found = gpuiso("ledger", "verify", "--file", str(path), "--json")
    assert found.code == 1
    check_schema(found.json, "ledger")
    assert found.json["fault"]["line"] == 1
    said = gpuiso("ledger", "verify", "--file", str(path))
    assert said.out.startswith(f"{path}:1: ")
    assert gpuiso("ledger", "verify", "--file", "/nonexistent/ledger.jsonl").code == 4


def test_a_job_is_restored_together(world: World, gpuiso: Gpuiso) -> None:
    pids = [world.target(gpu=0), world.target(gpu=1)]
    options = [option for pid in pids for option in ("--pid", str(pid))]
    assert gpuiso("reclaim", *options, "--yes").code == 0
    assert gpuiso("restore", "--pid", str(pids[0]), "--alone").code == 0
    assert works(world, pids[0])
    assert gpuiso("reclaim", "--pid", str(pids[0])).code == 0
    assert gpuiso("restore", "--pid", str(pids[1])).code == 0
    assert [works(world, pid, within=0.3) for pid in pids] == [False, True]


def test_a_group_leaves_alone_who_uses_no_cuda(world: World, gpuiso: Gpuiso) -> None:
    pid = world.target(gpu=1)
    opens = f"exec 3<>{world.directory}/dev/nvidia1; echo ready; exec sleep 600"
    with subprocess.Popen(["sh", "-c", opens], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"ready\n"
        done = gpuiso("reclaim", "--user", str(os.geteuid()), "--json")
        other.kill()
    assert [one["pid"] for one in done.json["processes"]] == [pid]
    assert f"process {other.pid} (sleep) has a GPU node open and uses no CUDA: left as it is" in done.err


def test_nothing_is_taken_that_cannot_be(world: World, gpuiso: Gpuiso) -> None:
    pid = world.target()
    world.knob(pid, "managed-memory")
    failed = gpuiso("reclaim", "--pid", str(pid), "--json")
    check_schema(failed.json, "error")
    assert failed.code == 7
    assert works(world, pid)
    ended = gpuiso("reclaim", "--pid", str(pid), "--until", "term")
    assert ended.code == 0
    assert "ended by SIGTERM" in ended.out
    assert not alive(pid)


def test_recover(world: World, gpuiso: Gpuiso) -> None:
    pid = world.target()
    world.deny(0)
    world.fault("checkpoint", "after", "fail 304")
    assert gpuiso("reclaim", "--pid", str(pid)).code == 8
    assert "gpuiso recover" in gpuiso("reclaim", "--list").out
    assert gpuiso("recover").code == 8
    world.deny(0, denied=False)
    done = gpuiso("recover")
    assert done.code == 0
    assert f"process {pid} ({comm(pid)}) runs again" in done.out
    assert works(world, pid)
    assert gpuiso("recover").out == "nothing to recover\n"


@requires("kernel")
def test_scope_only(world: World, gpuiso: Gpuiso, tmp_cgroup: Path) -> None:
    (world.directory / "real-gate").touch()
    pid = world.target(gpu=1)
    (tmp_cgroup / "cgroup.procs").write_text(str(pid))
    plan = gpuiso("reclaim", "--pid", str(pid), "--scope-only", "--dry-run")
    assert "/dev/nvidia1" in plan.out.replace("\n", "")
    done = gpuiso("reclaim", "--pid", str(pid), "--scope-only")
    assert done.code == 0
    assert "what is open" not in done.err
    assert "files that are open stay as they are" in done.out
    assert (tmp_cgroup / "cgroup.procs").read_text() == ""
    assert world.memory()[1].used != 0
    assert works(world, pid)
    again = gpuiso("reclaim", "--pid", str(pid), "--scope-only")
    assert (again.code, "in a scope of gpuiso's already" in again.err) == (5, True)
    back = gpuiso("restore", "--pid", str(pid), "--json")
    check_schema(back.json, "restore")
    assert (tmp_cgroup / "cgroup.procs").read_text().split() == [str(pid)]
    assert gpuiso("restore", "--pid", str(pid)).code == 4


@requires("kernel")
def test_scope_only_is_undone_for_all(
    world: World, gpuiso: Gpuiso, tmp_cgroup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (world.directory / "real-gate").touch()
    pids = sorted([world.target(), world.target()])
    for pid in pids:
        (tmp_cgroup / "cgroup.procs").write_text(str(pid))
    close = PlaceGate.close

    def close_the_first(gate: PlaceGate, target: Target, *arguments: Any) -> Memo:
        if target.pid == pids[1]:
            raise GpuisoError("the second one does not close")
        return close(gate, target, *arguments)

    monkeypatch.setattr(PlaceGate, "close", close_the_first)
    done = gpuiso("reclaim", "--pid", str(pids[0]), "--pid", str(pids[1]), "--scope-only", "--yes", "--json")
    assert done.code == 7
    assert "does not close; all are where they were" in done.json["error"]["message"]
    assert sorted(map(int, (tmp_cgroup / "cgroup.procs").read_text().split())) == pids
    assert gpuiso("reclaim", "--list").out == "nothing is reclaimed\n"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ([], 2, "name what is to be reclaimed"),
        (["--pid", "1", "--until", "never"], 2, "the rungs are checkpoint, term, kill, reset"),
        (["--pid", "1", "--scope-only", "--until", "kill"], 2, "goes with no other way"),
        (["--pid", "1", "--freeze", "--no-rules"], 2, "needs the cgroup"),
        (["--pid", "4194305"], 4, "no process 4194305"),
        (["--gpu", "GPU-1"], 4, "no GPU GPU-1"),
        (["--pid", "1"], 5, "cannot be checkpointed: it is the init process, which is left alone\n"),
        (["--pid", str(os.getpid())], 5, "it is gpuiso itself; it uses no CUDA"),
    ],
)
def test_what_makes_no_sense(gpuiso: Gpuiso, arguments: list[str], code: int, says: str) -> None:
    done = gpuiso("reclaim", *arguments)
    assert (done.code, done.out) == (code, "")
    assert says in done.err
    assert "Traceback" not in done.err


def test_the_init_process_stays_where_it_is(world: World, gpuiso: Gpuiso) -> None:
    (world.directory / "real-gate").touch()
    for further in ([], ["--dry-run"]):
        done = gpuiso("reclaim", "--pid", "1", "--scope-only", *further)
        assert (done.code, done.out) == (5, "")
        assert done.err == "gpuiso: process 1 is the init process: it stays where it is\n"
    plan = gpuiso("reclaim", "--pid", "1", "--dry-run", "--until", "kill")
    assert (plan.code, plan.err) == (0, "")
    assert "cannot be checkpointed: it is the init process" in plan.out
    assert "no signal: it is the init process" in plan.out
    assert gpuiso("reclaim", "--list").out == "nothing is reclaimed\n"
    assert not (world.directory / "log").exists()


def test_restore_what_is_not_reclaimed(gpuiso: Gpuiso) -> None:
    assert gpuiso("restore").code == 2
    assert gpuiso("restore", "--pid", "1", "--all").code == 2
    assert gpuiso("restore", "--all").code == 4
    assert gpuiso("restore", "--pid", "1").code == 4


def test_progress_in_words(world: World) -> None:
    from gpuiso.cli.render.reclaim import progress_text

    pid = world.target()
    with Target.open(world.host(), pid) as target:
        said = progress_text(Progress("checkpoint", target, 3 << 30, 8 << 30, 1.5))
        unknown = progress_text(Progress("restore", target, 1 << 30, None, 0.5))
    assert said == f"checkpoint of process {pid} ({comm(pid)}): 3.0 of 8.0 GiB, 2.1 GB/s, 2 s left"
    assert unknown == f"restore of process {pid} ({comm(pid)}): 1.0 GiB, 2.1 GB/s"


def test_progress_is_told_while_bytes_move(world: World) -> None:
    told: list[Progress] = []
    session = make_session(world)
    session.notify = told.append
    pid = world.target(mib=900)
    world.fault("checkpoint", "after", "hang")
    from tests.reclaim.test_take import reclaim

    def release(progress: Progress) -> None:
        told.append(progress)
        if len(told) == 5:
            (world.directory / "release").touch()

    session.notify = release
    reclaim(session, pid)
    assert session.helper.state(pid) == (0, ProcessState.CHECKPOINTED)
    assert {progress.phase for progress in told} == {"checkpoint"}
    assert told[-1].total == 900 << 20
    assert told[0].moved <= told[-1].moved <= 900 << 20
    session.close()
