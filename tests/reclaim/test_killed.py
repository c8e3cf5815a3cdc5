# SPDX-License-Identifier: Apache-2.0
"""gpuiso killed with -9 at every point, with its helper or without; then recover."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from gpuiso.errors import NotUndone
from gpuiso.reclaim.cuda import ProcessState
from gpuiso.reclaim.recover import recover
from gpuiso.reclaim.session import Session
from tests.reclaim.test_take import assert_running, reclaim, restore, works
from tests.reclaim.world import World, comm, make_session
from tests.support import REPOSITORY

PROGRAM = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from gpuiso.reclaim.give import give
from gpuiso.reclaim.take import Options, take
from gpuiso.reclaim.target import Target
from tests.reclaim.world import World, make_session
world = World(Path(sys.argv[2]), Path(sys.argv[3]))
(world.directory / "client").write_text(str(os.getpid()))
session = make_session(world)
if sys.argv[4] == "confine":
    from gpuiso.reclaim.confine import confine
    with Target.open(session.host, int(sys.argv[5])) as target:
        confine(session, [target])
elif sys.argv[4] == "reclaim":
    with Target.open(session.host, int(sys.argv[5])) as target:
        take(session, [target], Options(freeze=True))
else:
    give(session, session.records.all())
"""


@pytest.fixture
def session(world: World) -> Iterator[Session]:
    session = make_session(world)
    yield session
    session.close()


def run(world: World, verb: str, pid: int) -> int:
    argv = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(REPOSITORY), str(world.directory), str(world.library)]
    return subprocess.run([*argv, verb, str(pid)], check=False, timeout=60).returncode


def recovered(session: Session, world: World, pid: int) -> list[str]:
    """What recover did, once the helper that outlived its client is done."""
    limit = time.monotonic() + 5
    while world.helpers() and time.monotonic() < limit:
        time.sleep(0.02)
    done = recover(session)
    assert recover(session) == []
    assert session.ledger.verify().fault is None
    return done


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("call", ["state", "lock", "checkpoint"])
@pytest.mark.parametrize("who", ["client", "both"])
def test_during_a_reclaim(world: World, session: Session, who: str, call: str, when: str) -> None:
    pid = world.target()
    world.fault(call, when, f"kill {who}")
    assert run(world, "reclaim", pid) == -signal.SIGKILL
    done = recovered(session, world, pid)
    assert len(done) == (0 if call == "state" else 1)
    assert_running(world, session, pid)


@pytest.mark.parametrize("place", ["close-begun", "close-done"])
def test_at_the_gate(world: World, session: Session, place: str) -> None:
    pid = world.target()
    (world.directory / f"die.{place}").touch()
    assert run(world, "reclaim", pid) == -signal.SIGKILL
    assert session.helper.state(pid) == (0, ProcessState.CHECKPOINTED)
    assert [record.phase for record in session.records.all()] == ["reclaiming"]
    recovered(session, world, pid)
    assert_running(world, session, pid)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("call", ["state", "restore", "unlock"])
@pytest.mark.parametrize("who", ["client", "both"])
def test_during_a_restore(world: World, session: Session, who: str, call: str, when: str) -> None:
    pid = world.target()
    reclaim(session, pid, freeze=True)
    world.fault(call, when, f"kill {who}")
    assert run(world, "restore", pid) == -signal.SIGKILL
    assert recovered(session, world, pid) == [
        f"process {pid} ({comm(pid)}) runs again: its restore had been interrupted"
    ]
    assert_running(world, session, pid)


def test_when_the_gate_is_open_again(world: World, session: Session) -> None:
    pid = world.target()
    reclaim(session, pid)
    (world.directory / "die.open-done").touch()
    assert run(world, "restore", pid) == -signal.SIGKILL
    assert session.helper.state(pid) == (0, ProcessState.CHECKPOINTED)
    recovered(session, world, pid)
    assert_running(world, session, pid)


def test_a_restore_that_recover_cannot_finish_stays_reclaimed(world: World, session: Session) -> None:
    pid = world.target()
    reclaim(session, pid)
    (world.directory / "die.open-done").touch()
    assert run(world, "restore", pid) == -signal.SIGKILL
    world.deny(0)
    (said,) = recover(session)
    assert "stays reclaimed, its data whole" in said
    assert [record.phase for record in session.records.all()] == ["reclaimed"]
    world.deny(0, denied=False)
    restore(session, pid)
    assert_running(world, session, pid)


def test_the_process_ends_while_nobody_looks(world: World, session: Session) -> None:
    pid = world.target()
    reclaim(session, pid)
    world.targets[0].kill()
    world.targets[0].wait()
    (said, _) = recovered(session, world, pid)
    assert "ended while it was reclaimed" in said
    assert session.records.all() == ()
    assert list(world.directory.glob("denied.*")) == []


@pytest.mark.parametrize("place", ["close-begun", "close-done"])
def test_on_the_way_into_a_scope(world: World, session: Session, place: str) -> None:
    pid = world.target()
    (world.directory / f"die.{place}").touch()
    assert run(world, "confine", pid) == -signal.SIGKILL
    assert [record.phase for record in session.records.all()] == ["confining"]
    assert "is where it was" in recovered(session, world, pid)[0]
    assert_running(world, session, pid)


def test_what_is_finished_stays(world: World, session: Session) -> None:
    pid = world.target()
    reclaim(session, pid)
    assert recovered(session, world, pid) == []
    assert not works(world, pid, within=0.1)
    restore(session, pid)
    assert_running(world, session, pid)


@pytest.mark.parametrize("verb", ["reclaim", "restore"])
def test_recover_restores_into_no_gpu_that_is_full(world: World, session: Session, verb: str) -> None:
    pid = world.target(mib=900)
    if verb == "restore":
        reclaim(session, pid)
    (world.directory / ("die.close-done" if verb == "reclaim" else "die.open-done")).touch()
    assert run(world, verb, pid) == -signal.SIGKILL
    (world.directory / "occupied").write_text(f"{world.uuids[0]} 143000")
    if verb == "reclaim":
        with pytest.raises(NotUndone, match="771 MiB free, and 1156 are needed"):
            recover(session)
    else:
        (said,) = recover(session)
        assert "771 MiB free, and 1156 are needed" in said
    assert session.helper.state(pid) == (0, ProcessState.CHECKPOINTED)
    (world.directory / "occupied").unlink()
    if verb == "reclaim":
        recover(session)
    else:
        restore(session, pid)
    assert_running(world, session, pid)


INTERRUPTIBLE = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from gpuiso.cli.reclaim import interruptible
from gpuiso.reclaim.take import Options, take
from gpuiso.reclaim.target import Target
from tests.reclaim.world import World, make_session
session = make_session(World(Path(sys.argv[2]), Path(sys.argv[3])))
with interruptible(), Target.open(session.host, int(sys.argv[4])) as target:
    take(session, [target], Options())
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_walks_back(world: World, session: Session, number: signal.Signals) -> None:
    """In the middle of the copy: that is waited for, then undone, and said."""
    pid = world.target()
    world.fault("checkpoint", "after", "hang")
    argv = [sys.executable, "-W", "ignore", "-c", INTERRUPTIBLE, str(REPOSITORY)]
    with subprocess.Popen(
        [*argv, str(world.directory), str(world.library), str(pid)], stderr=subprocess.PIPE, text=True
    ) as client:
        limit = time.monotonic() + 20
        while session.helper.state(pid)[1] != ProcessState.CHECKPOINTED:
            assert time.monotonic() < limit
            time.sleep(0.01)
        client.send_signal(number)
        time.sleep(0.3)
        (world.directory / "release").touch()
        _, said = client.communicate(timeout=30)
    assert "Interrupted: interrupted; it is RUNNING again" in said
    assert_running(world, session, pid)
