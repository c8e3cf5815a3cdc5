# SPDX-License-Identifier: Apache-2.0
"""No governor freezes a process while the driver works on it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuiso.errors import TimedOut
from gpuiso.govern import hold
from gpuiso.govern.hold import FreezeLock
from gpuiso.reclaim.give import give
from gpuiso.reclaim.session import Session
from gpuiso.reclaim.take import Options, look, take
from gpuiso.reclaim.target import Target
from tests.reclaim.world import World, make_session
from tests.tiers import requires

pytestmark = requires("kernel")


@pytest.fixture
def session(world: World) -> Iterator[Session]:
    session = make_session(world)
    yield session
    session.close()


@pytest.fixture
def locks(session: Session, world: World, tmp_cgroup: Path, cgroup2_root: Path) -> list[FreezeLock]:
    """Those of governors of the target's cgroup, and of the one above."""
    inner = tmp_cgroup / "inner"
    inner.mkdir()
    (inner / "cgroup.procs").write_text(str(world.target()))
    names = [f"/{path.relative_to(cgroup2_root)}" for path in (inner, tmp_cgroup)]
    return [FreezeLock(name, session.holds) for name in names]


def takes(lock: FreezeLock) -> bool:
    """Whether a governor could freeze now."""
    taken = lock.take()
    lock.give_back()
    return taken


def during(world: World, call: str, work: Callable[[], object], ask: Callable[[], bool]) -> bool:
    """The answer while the driver is in ``call``."""
    world.fault(call, "before", "hang")
    thread = threading.Thread(target=work)
    thread.start()
    try:
        while (world.directory / f"fault.{call}.before").exists():
            time.sleep(0.005)
        return ask()
    finally:
        (world.directory / "release").touch()
        thread.join()
        (world.directory / "release").unlink()


def test_a_reclaim_and_a_restore_are_not_frozen(world: World, session: Session, locks: list[FreezeLock]) -> None:
    pid = world.targets[0].pid

    def could_freeze() -> bool:
        return any(takes(lock) for lock in locks)

    with Target.open(session.host, pid) as target:
        assert not during(world, "checkpoint", lambda: take(session, [target], Options()), could_freeze)
    assert all(takes(lock) for lock in locks)
    assert [record.phase for record in session.records.all()] == ["reclaimed"]
    assert not during(world, "restore", lambda: give(session, session.records.all()), could_freeze)
    assert all(takes(lock) for lock in locks)
    assert session.records.all() == ()
    assert os.listdir(session.holds) == []


def test_a_walk_back_is_not_frozen(world: World, session: Session, locks: list[FreezeLock]) -> None:
    world.fault("checkpoint", "before", "fail 801")

    def fails() -> None:
        with Target.open(session.host, world.targets[0].pid) as target, pytest.raises(Exception, match="801"):
            take(session, [target], Options())

    assert not during(world, "unlock", fails, lambda: takes(locks[0]))
    assert os.listdir(session.holds) == []


def test_a_frozen_one_is_waited_for(
    session: Session, world: World, locks: list[FreezeLock], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Target.open(session.host, world.targets[0].pid) as target:
        assert locks[1].take()
        timer = threading.Timer(0.1, locks[1].give_back)
        timer.start()
        assert look(session, target)[1] == ()
        timer.join()
        monkeypatch.setattr(hold, "_PATIENCE", 0.05)
        assert locks[0].take()
        with pytest.raises(TimedOut, match=r"a governor has kept /.*/inner frozen for more than 0\.05 s"):
            take(session, [target], Options())
        locks[0].give_back()
    assert session.records.all() == ()
