# SPDX-License-Identifier: Apache-2.0
"""Reclaim and restore with the fake driver: whatever fails, a process ends RUNNING or reclaimed, and it is told so."""

from __future__ import annotations

import dataclasses
import errno
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest

from gpuiso.errors import FailedAndUndone, GpuisoError, NotFound, NotSupported, NotUndone
from gpuiso.gpu.model import Gpu
from gpuiso.host.gpu_memory import GpuMemory
from gpuiso.reclaim.confine import confine, put_back
from gpuiso.reclaim.cuda import ProcessState
from gpuiso.reclaim.give import give
from gpuiso.reclaim.recover import recover
from gpuiso.reclaim.session import Memo, Session
from gpuiso.reclaim.take import Options, Taken, take
from gpuiso.reclaim.target import Target, TargetEnded
from tests.reclaim.world import World, alive, make_session

CALLS = ("lock", "checkpoint")


@pytest.fixture
def session(world: World) -> Iterator[Session]:
    session = make_session(world)
    yield session
    session.close()


def reclaim(session: Session, *pids: int, freeze: bool = False) -> list[Taken]:
    with ExitStack() as stack:
        targets = [stack.enter_context(Target.open(session.host, pid)) for pid in pids]
        return take(session, targets, Options(lock_timeout=0.5, freeze=freeze))


def restore(session: Session, *pids: int) -> None:
    records = [record for record in session.records.all() if record.pid in pids]
    assert len(records) == len(pids)
    give(session, records)


def works(world: World, pid: int, *, within: float = 5.0) -> bool:
    """Whether a target goes on with its work."""
    before = world.work(pid)
    limit = time.monotonic() + within
    while time.monotonic() < limit:
        if world.work(pid) > before:
            return True
        time.sleep(0.01)
    return False


def results(session: Session) -> list[tuple[str, str]]:
    """What the ledger tells, in order; it is whole."""
    assert session.ledger.verify().fault is None
    return [(entry["event"], entry["result"]) for entry in session.ledger.entries()]


def assert_running(world: World, session: Session, pid: int) -> None:
    assert session.helper.state(pid) == (0, ProcessState.RUNNING)
    assert works(world, pid)
    assert session.records.all() == ()
    assert list(world.directory.glob("denied.*")) == []


def assert_reclaimed(world: World, session: Session, pid: int, *, gpu: int = 0) -> None:
    assert session.helper.state(pid) == (0, ProcessState.CHECKPOINTED)
    assert pid not in world.memory()[gpu].processes
    (record,) = [record for record in session.records.all() if record.pid == pid]
    assert record.phase == "reclaimed"
    assert (world.directory / f"denied.{gpu}").exists()


def test_there_and_back(world: World, session: Session) -> None:
    pid = world.target(gpu=2, mib=900)
    (taken,) = reclaim(session, pid)
    assert taken.record.memory == {world.uuids[2]: 900 << 20}
    assert set(taken.seconds) == {"lock", "checkpoint", "verify", "close", "whole"}
    assert_reclaimed(world, session, pid, gpu=2)
    assert not works(world, pid, within=0.2)
    restore(session, pid)
    assert_running(world, session, pid)
    assert world.memory()[2].processes == {pid: 900 << 20}
    assert results(session) == [
        ("reclaim", "begun"),
        ("reclaim", "reclaimed"),
        ("restore", "begun"),
        ("restore", "restored"),
    ]


def test_frozen_afterwards_and_thawed_before(world: World, session: Session) -> None:
    pid = world.target()
    reclaim(session, pid, freeze=True)
    assert world.state(pid) == "T"
    restore(session, pid)
    assert_running(world, session, pid)


def test_two_at_once(world: World, session: Session) -> None:
    pids = [world.target(gpu=0), world.target(gpu=1)]
    taken = reclaim(session, *pids)
    assert len({one.record.job for one in taken}) == 1
    assert [memory.used for memory in world.memory()] == [0, 0, 0, 0]
    restore(session, *pids)
    for pid in pids:
        assert works(world, pid)


def test_nvml_lists_other_pids(world: World, session: Session) -> None:
    """As in a pid namespace of one's own: what came back on the GPU is what a restore must find."""
    pid = world.target(gpu=1, mib=900)

    def elsewhere() -> tuple[GpuMemory, ...]:
        return tuple(
            dataclasses.replace(gpu, processes={pid + (1 << 22): used for pid, used in gpu.processes.items()})
            for gpu in world.memory()
        )

    session.memory = elsewhere
    (taken,) = reclaim(session, pid)
    assert taken.record.memory == {world.uuids[1]: 900 << 20}
    (world.directory / "occupied").write_text(f"{world.uuids[1]} 143000")
    with pytest.raises(GpuisoError, match="1156 are needed"):
        restore(session, pid)
    (world.directory / "occupied").unlink()
    restore(session, pid)
    assert_running(world, session, pid)


def test_one_failure_lets_all_go_on(world: World, session: Session) -> None:
    good, bad = world.target(gpu=0), world.target(gpu=1)
    world.knob(bad, "managed-memory")
    with pytest.raises(FailedAndUndone, match=f"{bad}.*CUDA_ERROR_NOT_SUPPORTED.*all run again"):
        reclaim(session, good, bad)
    for pid in (good, bad):
        assert_running(world, session, pid)


def test_a_kernel_that_never_ends(world: World, session: Session) -> None:
    pid = world.target()
    world.knob(pid, "endless-kernel")
    with pytest.raises(FailedAndUndone, match=r"CUDA_ERROR_NOT_READY.*RUNNING again"):
        reclaim(session, pid)
    assert_running(world, session, pid)


@pytest.mark.parametrize("knob", ["keeps-files", "keeps-vram"])
def test_success_is_believed_only_when_seen(
    world: World, session: Session, knob: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuiso.reclaim.take._VERIFY_LIMIT", 0.2)
    pid = world.target()
    world.knob(pid, knob)
    with pytest.raises(FailedAndUndone, match="still holds"):
        reclaim(session, pid)
    assert_running(world, session, pid)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("action", ["fail 304", "kill caller"])
def test_a_reclaim_fails(world: World, session: Session, action: str, call: str, when: str) -> None:
    pid = world.target()
    world.fault(call, when, action)
    with pytest.raises(FailedAndUndone, match="RUNNING again"):
        reclaim(session, pid)
    assert_running(world, session, pid)
    assert results(session) == [("reclaim", "begun"), ("reclaim", "undone")]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("call", CALLS)
def test_a_call_hangs(world: World, session: Session, call: str, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuiso.reclaim.drive.patience", lambda total: 0.3)
    monkeypatch.setattr("gpuiso.reclaim.drive._QUICK", 0.3)
    pid = world.target()
    world.fault(call, when, "hang")
    with pytest.raises(FailedAndUndone, match="gave no answer"):
        reclaim(session, pid)
    assert_running(world, session, pid)
    (world.directory / "release").touch()  # the helper that hung goes on now, and undoes what it did
    time.sleep(1.0)
    assert_running(world, session, pid)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("call", CALLS)
def test_the_target_dies(world: World, session: Session, call: str, when: str) -> None:
    pid = world.target()
    world.fault(call, when, "kill target")
    with pytest.raises(TargetEnded, match="ended"):
        reclaim(session, pid)
    assert not alive(pid)
    assert session.records.all() == ()
    assert results(session) == [("reclaim", "begun"), ("reclaim", "ended")]


def test_one_of_two_dies(world: World, session: Session) -> None:
    good, bad = world.target(gpu=0), world.target(gpu=1)
    world.fault("lock", "after", "kill target")  # the first call: that of the first process
    with pytest.raises(FailedAndUndone, match="ended meanwhile; all others are RUNNING"):
        reclaim(session, good, bad)
    assert not alive(good)
    assert_running(world, session, bad)


def test_the_gate_does_not_close(world: World, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = world.target()

    def close(target: Target, gpus: tuple[Gpu, ...], remember: Callable[[Memo], None]) -> Memo:
        raise GpuisoError("no")

    monkeypatch.setattr(session.gate, "close", close)
    with pytest.raises(FailedAndUndone, match="no; it is RUNNING again"):
        reclaim(session, pid)
    assert_running(world, session, pid)


def test_an_interrupt_walks_back(world: World, session: Session) -> None:
    pid = world.target(mib=4000)

    def interrupt(progress: object) -> None:
        raise KeyboardInterrupt

    session.notify = interrupt
    with pytest.raises(FailedAndUndone, match="interrupted; it is RUNNING again"):
        reclaim(session, pid)
    assert_running(world, session, pid)


def test_what_cannot_be_brought_back_is_said_and_recovered(world: World, session: Session) -> None:
    pid = world.target()
    world.deny(0)  # behind our back: the walk back meets it
    world.fault("checkpoint", "after", "fail 304")
    with pytest.raises(NotUndone, match="CUDA_ERROR_NO_DEVICE"):
        reclaim(session, pid)
    assert results(session)[-1] == ("reclaim", "failed")
    assert [record.phase for record in session.records.all()] == ["reclaiming"]
    with pytest.raises(NotUndone, match="could not be put right"):
        recover(session)
    world.deny(0, denied=False)
    assert recover(session) == [f"process {pid} (python) runs again: its reclaim had been interrupted"]
    assert_running(world, session, pid)


def test_two_gpuiso_at_once(world: World, session: Session) -> None:
    pid = world.target()
    with Target.open(session.host, pid) as target, session.records.lock(pid, target.start_time):
        with pytest.raises(GpuisoError, match="another gpuiso works"):
            reclaim(session, pid)
        assert recover(session) == []
    reclaim(session, pid)
    with pytest.raises(NotSupported, match="is reclaimed already"):
        reclaim(session, pid)
    restore(session, pid)


# Restore


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("action", ["fail 304", "kill caller"])
def test_a_restore_fails(world: World, session: Session, action: str, when: str) -> None:
    pid = world.target()
    reclaim(session, pid, freeze=True)
    world.fault("restore", when, action)
    with pytest.raises(FailedAndUndone) as caught:
        restore(session, pid)
    if when == "before":
        assert "stays reclaimed, its data whole" in caught.value.message
        assert world.state(pid) == "T"
        os.kill(pid, signal.SIGCONT)  # or the driver could not be asked
        assert_reclaimed(world, session, pid)
        assert results(session)[-1] == ("restore", "reclaimed")
        restore(session, pid)
    else:
        assert "runs" in caught.value.message
        assert results(session)[-1] == ("restore", "restored")
    assert_running(world, session, pid)


@pytest.mark.parametrize("action", ["fail 304", "kill caller"])
def test_an_unlock_fails(world: World, session: Session, action: str) -> None:
    pid = world.target()
    reclaim(session, pid)
    world.fault("unlock", "before", action)
    with pytest.raises(FailedAndUndone, match="runs"):
        restore(session, pid)
    assert_running(world, session, pid)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("call", ["restore", "unlock"])
def test_the_target_dies_on_the_way_back(world: World, session: Session, call: str, when: str) -> None:
    pid = world.target()
    reclaim(session, pid)
    world.fault(call, when, "kill target")
    with pytest.raises(TargetEnded, match="ended meanwhile"):
        restore(session, pid)
    assert session.records.all() == ()
    assert results(session)[-1] == ("restore", "ended")
    assert list(world.directory.glob("denied.*")) == []


def test_the_target_died_while_it_was_reclaimed(world: World, session: Session) -> None:
    pid = world.target()
    reclaim(session, pid)
    world.targets[0].kill()
    world.targets[0].wait()
    with pytest.raises(NotFound, match="ended while it was reclaimed"):
        restore(session, pid)
    assert session.records.all() == ()
    assert list(world.directory.glob("denied.*")) == []


def test_a_restore_into_too_little_memory_is_not_begun(world: World, session: Session) -> None:
    pid = world.target(mib=900)
    reclaim(session, pid)
    (world.directory / "occupied").write_text(f"{world.uuids[0]} 143000")
    with pytest.raises(GpuisoError, match="has 771 MiB free, and 1156 are needed"):
        restore(session, pid)
    assert_reclaimed(world, session, pid)
    (record,) = session.records.all()
    (given,) = give(session, [record], {world.uuids[0]: world.uuids[1]})
    assert given.memory == {world.uuids[1]: 900 << 20}
    assert_running(world, session, pid)


def test_the_other_gpu_is_closed_to_it(world: World, session: Session) -> None:
    pid = world.target()
    reclaim(session, pid)
    world.deny(1)
    (record,) = session.records.all()
    with pytest.raises(FailedAndUndone, match=r"CUDA_ERROR_NOT_SUPPORTED.*stays reclaimed"):
        give(session, [record], {world.uuids[0]: world.uuids[1]})
    assert_reclaimed(world, session, pid)
    world.deny(1, denied=False)
    restore(session, pid)
    assert_running(world, session, pid)


def test_moves_that_make_no_sense(world: World, session: Session) -> None:
    pid = world.target()
    reclaim(session, pid)
    (record,) = session.records.all()
    with pytest.raises(NotFound, match="no GPU GPU-1"):
        give(session, [record], {world.uuids[0]: "GPU-1"})
    with pytest.raises(NotFound, match="did not use GPU"):
        give(session, [record], {world.uuids[2]: world.uuids[1]})
    assert_reclaimed(world, session, pid)


def test_half_of_a_job_fails(world: World, session: Session) -> None:
    pids = [world.target(gpu=0), world.target(gpu=1)]
    reclaim(session, *pids)
    world.fault("restore", "after", "kill caller")  # after the first is LOCKED
    with pytest.raises(FailedAndUndone, match="stays reclaimed"):
        restore(session, *pids)
    for gpu, pid in enumerate(pids):
        assert_reclaimed(world, session, pid, gpu=gpu)
    restore(session, *pids)
    assert all(works(world, pid) for pid in pids)


# What else must not go wrong


def test_the_ledger_fails_in_the_middle(world: World, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be written down is not done, and all are walked back."""
    pids = [world.target(gpu=0), world.target(gpu=1)]
    real = session.ledger._append

    def full(event: str, details: Mapping[str, Any]) -> None:
        if details["result"] != "begun":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(event, details)

    monkeypatch.setattr(session.ledger, "_append", full)
    with pytest.raises(FailedAndUndone, match="No space left on device; all run again"):
        reclaim(session, *pids)
    for pid in pids:
        assert_running(world, session, pid)


def test_a_record_is_not_forgotten(world: World, session: Session) -> None:
    pid = world.target()
    with Target.open(session.host, pid) as target:
        (record,) = confine(session, [target])
    with pytest.raises(NotSupported, match="is in a scope of gpuiso's already"):
        reclaim(session, pid)
    put_back(session, record)
    session.records.write(record.with_phase("reclaiming"))
    with pytest.raises(NotSupported, match="left half-way"):
        reclaim(session, pid)
    recover(session)
    reclaim(session, pid)
    restore(session, pid)
    assert_running(world, session, pid)
