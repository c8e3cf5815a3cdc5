# SPDX-License-Identifier: Apache-2.0
"""The gate on real cgroups: who is inside may not open a GPU's node, and afterwards everybody is where they were."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuiso.apply.calls import Calls
from gpuiso.apply.state import State
from gpuiso.errors import GpuisoError
from gpuiso.gpu.inventory import build_inventory
from gpuiso.gpu.model import Gpu
from gpuiso.host.probe_cgroup import probe_cgroup
from gpuiso.host.process import unified_cgroup
from gpuiso.host.process_tree import descendants, read_processes
from gpuiso.reclaim.gate import PlaceGate
from gpuiso.reclaim.session import Memo
from gpuiso.reclaim.target import Target
from tests.reclaim.test_take import assert_running, reclaim, restore
from tests.reclaim.world import World, make_session
from tests.tiers import requires

pytestmark = requires("kernel")

# Starts a child that forks, 500 times a second; each grandchild lives for a tenth of a second.
FORKS = """
import os, time
if os.fork() == 0:
    while True:
        if os.fork() == 0:
            time.sleep(0.1)
            os._exit(0)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        time.sleep(0.002)
print("ready", flush=True)
while True:
    time.sleep(1)
"""


@pytest.fixture
def gpus(world: World) -> tuple[Gpu, ...]:
    return build_inventory(world.host()).of("nvidia")


@pytest.fixture
def started(tmp_cgroup: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that are ended in the end; start them with :func:`start`."""
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def start(processes: list[subprocess.Popen[bytes]], cgroup: Path, *argv: str) -> int:
    """A process in a cgroup, once it printed a line."""
    shell = f'echo $$ >{cgroup}/cgroup.procs && exec "$@"'
    process = subprocess.Popen(["sh", "-c", shell, "sh", *argv], stdout=subprocess.PIPE)
    processes.append(process)
    assert process.stdout is not None
    assert process.stdout.readline()
    return process.pid


def sleeper(processes: list[subprocess.Popen[bytes]], cgroup: Path) -> int:
    return start(processes, cgroup, "sh", "-c", "echo ready; exec sleep 600")


def make_gate(world: World, calls: Calls | None = None) -> PlaceGate:
    return PlaceGate(world.host(), calls or Calls(), State(world.directory / "run"))


def place_of(world: World, pid: int) -> str:
    return str(unified_cgroup(world.host(), pid))


def test_closed_and_open_again(
    world: World, gpus: tuple[Gpu, ...], tmp_cgroup: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    pid = sleeper(started, tmp_cgroup)
    origin = place_of(world, pid)
    gate = make_gate(world)
    memos: list[Memo] = []
    with Target.open(world.host(), pid) as target:
        told = gate.describe(target, gpus[:1])
        memo = gate.close(target, gpus[:1], memos.append)
        assert place_of(world, pid) == memo["cgroup"] == f"{origin}/gpuiso-{pid}-{target.start_time}"
    assert any(memo["cgroup"] in line for line in told)
    inside = Path(f"{memo['mount']}{memo['cgroup']}")
    directory = os.open(inside, os.O_RDONLY | os.O_DIRECTORY)
    assert probe_cgroup([("c", 195, 0, 6), ("c", 195, 1, 6)], cgroup=directory) == (False, True)
    os.close(directory)
    gate.freeze(memo)
    assert "frozen 1" in (inside / "cgroup.events").read_text()
    gate.open(memo)
    assert place_of(world, pid) == origin
    assert not inside.exists()
    assert gate.open(memo) == []  # as often as one likes


def test_every_state_of_a_closing_can_be_undone(
    world: World, gpus: tuple[Gpu, ...], tmp_cgroup: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    pid = sleeper(started, tmp_cgroup)
    origin = place_of(world, pid)

    class Stop(Exception):
        pass

    for last in range(1, 4):
        memos: list[Memo] = []

        def remember(memo: Memo, memos: list[Memo] = memos, last: int = last) -> None:
            memos.append(memo)
            if len(memos) == last:
                raise Stop

        gate = make_gate(world)
        with Target.open(world.host(), pid) as target:
            try:
                gate.close(target, gpus[:1], remember)
            except Stop:
                pass
        gate.open(memos[-1])
        assert place_of(world, pid) == origin
        assert [path.name for path in tmp_cgroup.iterdir() if path.is_dir()] == []


def test_a_failure_puts_it_back(
    world: World,
    gpus: tuple[Gpu, ...],
    tmp_cgroup: Path,
    started: list[subprocess.Popen[bytes]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pid = sleeper(started, tmp_cgroup)
    origin = place_of(world, pid)
    calls = Calls()

    def attach(directory: int, program: int) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(calls, "prog_attach", attach)
    with Target.open(world.host(), pid) as target, pytest.raises(GpuisoError, match="could not be closed"):
        make_gate(world, calls).close(target, gpus[:1], lambda memo: None)
    assert place_of(world, pid) == origin
    assert [path for path in tmp_cgroup.iterdir() if path.is_dir()] == []


def test_the_old_place_is_gone(
    world: World, gpus: tuple[Gpu, ...], tmp_cgroup: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    """The gate of a process whose cgroup was removed: it goes to what is left above."""
    below = tmp_cgroup / "job"
    below.mkdir()
    pid = sleeper(started, below)
    gate = make_gate(world)
    with Target.open(world.host(), pid) as target:
        memo = gate.close(target, gpus[:1], lambda memo: None)
    told = json.loads(json.dumps(memo).replace(place_of(world, pid).rpartition("/")[0], "/nowhere/job"))
    told["cgroup"] = memo["cgroup"]
    for entry, old in zip(told["entries"], memo["entries"], strict=True):
        entry["step"] = old["step"]
    done = gate.open(told)
    assert any("/nowhere/job is gone" in line for line in done)
    assert place_of(world, pid) == "/"
    (below / "cgroup.procs").write_text(str(pid))


def test_a_tree_that_forks_all_the_time(
    world: World, gpus: tuple[Gpu, ...], tmp_cgroup: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    pid = start(started, tmp_cgroup, sys.executable, "-I", "-S", "-c", FORKS)
    origin = place_of(world, pid)
    gate = make_gate(world)
    for _ in range(5):
        with Target.open(world.host(), pid) as target:
            memo = gate.close(target, gpus, lambda memo: None)
        for _ in range(5):
            outside = (tmp_cgroup / "cgroup.procs").read_text().split()
            assert outside == []
            time.sleep(0.02)
        assert len(descendants(read_processes(), pid)) > 2
        gate.open(memo)
        assert place_of(world, pid) == origin


def test_a_reclaim_through_it(world: World, tmp_cgroup: Path) -> None:
    """The whole way, the fake driver opening nodes under the real rules."""
    for index in range(4):
        os.mknod(world.directory / "nodes" / f"nvidia{index}", 0o20666, os.makedev(195, index))
    pid = world.target(gpu=1)
    (tmp_cgroup / "cgroup.procs").write_text(str(pid))
    session = make_session(world, make_gate(world))
    try:
        reclaim(session, pid, freeze=True)
        (record,) = session.records.all()
        assert record.gate is not None
        make_gate(world)._freeze(record.gate, frozen=False)  # or the driver could not be asked
        assert session.helper.call("restore", pid, deadline=5).code == 100
        restore(session, pid)
        assert_running(world, session, pid)
        assert place_of(world, pid).endswith(tmp_cgroup.name)
    finally:
        session.close()
