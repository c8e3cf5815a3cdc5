# SPDX-License-Identifier: Apache-2.0
"""The locks that keep a cgroup from being frozen, and the files they are on."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import time
from pathlib import Path

import pytest

from gpuiso.govern.hold import FreezeLock, hold_thawed
from tests.children import start_child

SECONDS = 1.5


@pytest.fixture
def holds(tmp_path: Path) -> str:
    return str(tmp_path / "holds")


def test_no_file_is_left_of_a_holder(holds: str) -> None:
    lock = FreezeLock("/a", holds)
    assert stat.S_IMODE(os.stat(holds).st_mode) == 0o700
    assert os.listdir(holds) == []
    with hold_thawed("/a", holds), hold_thawed("/b", holds):
        with hold_thawed("/a", holds):
            assert len(os.listdir(holds)) == 2
        assert not lock.take()
        assert len(os.listdir(holds)) == 2
    assert os.listdir(holds) == []
    assert lock.take()
    assert lock.take()
    assert len(os.listdir(holds)) == 1
    lock.give_back()
    assert os.listdir(holds) == []


def test_what_a_killed_holder_left_goes_with_the_next(holds: str) -> None:
    def held() -> None:
        with hold_thawed("/a", holds):
            os.kill(os.getpid(), signal.SIGKILL)

    os.waitpid(start_child(held), 0)
    assert len(os.listdir(holds)) == 1
    FreezeLock("/a", holds)
    assert os.listdir(holds) == []


def test_a_child_that_was_forked_meanwhile_holds_nothing(holds: str) -> None:
    lock = FreezeLock("/a", holds)
    assert lock.take()
    child = start_child(signal.pause)
    try:
        lock.give_back()
        with hold_thawed("/a", holds):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_file_that_goes_while_it_is_waited_for_keeps_nobody_out(holds: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opened before the one who had it removed it, locked after that."""
    lock = FreezeLock("/a", holds)
    assert lock.take()
    real = fcntl.flock

    def late(fd: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", real)
        lock.give_back()
        real(fd, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with hold_thawed("/a", holds):
        assert not lock.take()
    assert lock.take()


def test_many_holders_and_a_governor_never_meet(holds: str, tmp_path: Path) -> None:
    """``inside`` has a byte for each that holds it thawed; a governor that has the lock must find none."""
    inside = tmp_path / "inside"
    inside.mkdir()
    end = time.monotonic() + SECONDS

    def holder() -> None:
        mark = inside / str(os.getpid())
        while time.monotonic() < end:
            with hold_thawed("/a", holds):
                mark.touch()
                mark.unlink()

    def governor() -> None:
        lock, taken = FreezeLock("/a", holds), 0
        while time.monotonic() < end:
            if lock.take():
                taken += 1
                assert os.listdir(inside) == []
                lock.give_back()
        assert taken > 10

    children = [start_child(act) for act in (holder, holder, governor)]
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
    assert os.listdir(holds) == []
