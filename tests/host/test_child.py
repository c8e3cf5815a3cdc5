# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from gpuiso.host.abandon import abandoned
from gpuiso.host.child import Child


def test_what_a_program_prints() -> None:
    result = Child(["sh", "-c", "echo out; echo err >&2; exit 3"]).result(10)
    assert (result.exit, result.stdout, result.stderr, result.timed_out) == (3, "out\n", "err\n", False)


def test_a_slow_program_and_its_children_are_killed(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    slow = Child(["sh", "-c", f"sleep 60 & echo $! >{pid_file}; wait"])
    while not pid_file.exists() or not pid_file.read_text().strip():
        time.sleep(0.01)
    result = slow.result(0)
    assert result.timed_out
    assert result.exit is None
    stat = Path(f"/proc/{int(pid_file.read_text())}/stat")
    for _ in range(200):
        if not stat.exists() or stat.read_text().split()[2] == "Z":
            return
        time.sleep(0.01)
    pytest.fail("the grandchild lives on")


def test_a_child_that_cannot_be_killed_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process in uninterruptible sleep does not see SIGKILL: nothing may wait for it."""
    monkeypatch.setattr(os, "killpg", lambda pid, number: None)
    stuck = Child(["sleep", "60"])
    started = time.monotonic()
    result = stuck.result(0.1)
    assert result.timed_out
    assert time.monotonic() - started < 30  # not the 60 s that the child sleeps
    process = abandoned.pop()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


def test_a_missing_program() -> None:
    with pytest.raises(FileNotFoundError):
        Child(["/nonexistent/program"])
