# SPDX-License-Identifier: Apache-2.0
"""A lab leaves nothing behind, however its owner ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.lab.errors import LabError
from tests.lab.host import Lab
from tests.lab.state import Process, State, remove_cgroup_tree, states, sweep
from tests.support import REPOSITORY
from tests.tiers import requires

OWNER = """
import sys, time
from tests.lab.host import Lab
lab = Lab.boot("trixie")
print(lab.pid, lab.cgroup, flush=True)
time.sleep(600)
"""


def test_a_process_is_known_by_its_start() -> None:
    child = subprocess.Popen(["sleep", "600"])
    process = Process.of(child.pid)
    assert process.alive()
    other = Process(child.pid, process.start - 1)
    assert not other.alive()
    other.kill()
    assert process.alive()
    process.kill()
    assert child.wait() == -signal.SIGKILL
    assert not process.alive()
    with pytest.raises(FileNotFoundError):
        Process.of(child.pid)


@requires("kernel")
def test_a_cgroup_tree_is_removed_with_its_tasks(tmp_cgroup: Path) -> None:
    leaf = tmp_cgroup / "lab/a/b"
    leaf.mkdir(parents=True)
    child = subprocess.Popen(["sleep", "600"])
    (leaf / "cgroup.procs").write_text(str(child.pid))
    remove_cgroup_tree(tmp_cgroup / "lab")
    assert not (tmp_cgroup / "lab").exists()
    assert child.wait() == -signal.SIGKILL


@requires("lab")
def test_closing_ends_everything() -> None:
    with Lab.boot("trixie") as lab:
        state = next(state for state in states() if state.cgroup == lab.cgroup)
        assert state.owner == Process.of(os.getpid())
        assert state.init is not None
        assert state.init.alive()
    assert not state.init.alive()
    assert not state.cgroup.exists()
    assert not state.file.exists()
    with pytest.raises(LabError, match="the lab is gone"):
        lab.run(["true"])
    lab.close()


@requires("lab")
def test_a_killed_owner_takes_its_lab_along() -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY, start_new_session=True
    )
    assert owner.stdout is not None
    with owner.stdout as stdout:
        pid, cgroup = stdout.readline().split()
    init = Process.of(int(pid))
    owner.kill()
    owner.wait()
    deadline = time.monotonic() + 30
    while init.alive() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not init.alive()
    assert cgroup in [str(state.cgroup) for state in sweep()]
    assert not Path(cgroup).exists()


@requires("kernel")
def test_sweep_finishes_what_an_aborted_run_left(tmp_cgroup: Path) -> None:
    child = subprocess.Popen(["sleep", "600"])
    gone = Process(os.getpid(), Process.of(os.getpid()).start - 1)
    state = State("test-aborted", gone, tmp_cgroup / "lab", Process.of(child.pid))
    state.cgroup.mkdir()
    state.save()
    assert state in sweep()
    assert child.wait() == -signal.SIGKILL
    assert not state.cgroup.exists()
    assert not state.file.exists()
    assert state not in sweep()
