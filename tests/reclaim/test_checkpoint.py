# SPDX-License-Identifier: Apache-2.0
"""The helper that makes the driver's calls, and what becomes of a target when somebody dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpuiso.errors import NotSupported, TimedOut
from gpuiso.reclaim.checkpoint import CheckpointHelper, HelperDied
from gpuiso.reclaim.cuda import ProcessState
from gpuiso.reclaim.target import TargetEnded
from tests.reclaim.world import World, alive, build_library
from tests.support import REPOSITORY

CHANGES = ("lock", "checkpoint", "restore", "unlock")


def settled(world: World, pid: int, expected: ProcessState = ProcessState.RUNNING) -> ProcessState | None:
    """The target's state once it is ``expected``, or after ten seconds."""
    state = None
    with CheckpointHelper(str(world.library)) as helper:
        for _ in range(200):
            _, state = helper.state(pid)
            if state == expected:
                break
            time.sleep(0.05)
    return state


def make_calls(helper: CheckpointHelper, pid: int, *calls: str) -> None:
    for do in calls:
        helper.call(do, pid, deadline=10)


def test_there_and_back(world: World, helper: CheckpointHelper) -> None:
    pid = world.target(gpu=1, mib=700)
    states = [helper.state(pid)[1]]
    for do in ("lock", "checkpoint"):
        assert helper.call(do, pid, deadline=10, timeout_ms=1000).code == 0
        states.append(helper.state(pid)[1])
    assert world.memory()[1].processes == {}
    for do in ("restore", "unlock"):
        assert helper.call(do, pid, deadline=10).code == 0
        states.append(helper.state(pid)[1])
    assert states == [
        ProcessState.RUNNING,
        ProcessState.LOCKED,
        ProcessState.CHECKPOINTED,
        ProcessState.LOCKED,
        ProcessState.RUNNING,
    ]
    assert world.memory()[1].processes == {pid: 700 << 20}


def test_pairs_reach_the_driver_in_the_order_of_a_uuid(world: World, helper: CheckpointHelper) -> None:
    pid = world.target(gpu=0)
    plain = [uuid.removeprefix("GPU-").replace("-", "") for uuid in world.uuids]
    new = [plain[1], plain[0], *plain[2:]]
    helper.call("lock", pid, deadline=10, timeout_ms=1000)
    helper.call("checkpoint", pid, deadline=10)
    assert helper.call("restore", pid, deadline=10, pairs=[(plain[0], plain[1])]).code == 1
    assert helper.call("restore", pid, deadline=10, pairs=list(zip(plain, new, strict=True))).code == 0
    assert list(world.memory()[1].processes) == [pid]
    helper.call("unlock", pid, deadline=10)


def test_a_process_without_cuda(world: World, helper: CheckpointHelper) -> None:
    assert helper.state(os.getpid()) == (3, None)


def test_a_driver_without_the_calls(tmp_path: Path, world: World) -> None:
    with pytest.raises(NotSupported, match="older than R570"):
        CheckpointHelper(str(build_library(tmp_path, "-DOLD_DRIVER", "-Wno-unused-function")))


def test_no_library(tmp_path: Path) -> None:
    with pytest.raises(NotSupported, match="cannot be loaded"):
        CheckpointHelper(str(tmp_path / "libcuda.so.1"))


def test_the_caller_has_no_gpu(world: World) -> None:
    (world.directory / "cuInit").write_text("100")
    with pytest.raises(NotSupported, match="CUDA_ERROR_NO_DEVICE"):
        CheckpointHelper(str(world.library))


def test_lock_gives_up_on_an_endless_kernel(world: World, helper: CheckpointHelper) -> None:
    pid = world.target()
    world.knob(pid, "endless-kernel")
    assert helper.call("lock", pid, deadline=10, timeout_ms=100).code == 600
    assert helper.state(pid)[1] == ProcessState.RUNNING


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("call", CHANGES)
def test_the_helper_is_killed(world: World, call: str, when: str) -> None:
    pid = world.target()
    world.fault(call, when, "kill caller")
    with CheckpointHelper(str(world.library)) as helper:
        with pytest.raises(HelperDied):
            make_calls(helper, pid, *CHANGES)
        with pytest.raises(HelperDied):
            helper.call("state", pid, deadline=10)
    with CheckpointHelper(str(world.library)) as second:
        answer = second.call("back", pid, deadline=10)
    assert (answer.code, answer.value) == (0, ProcessState.RUNNING)
    assert list(world.memory()[0].processes) == [pid]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("call", CHANGES)
def test_the_target_is_killed(world: World, helper: CheckpointHelper, call: str, when: str) -> None:
    pid = world.target()
    pidfd = os.pidfd_open(pid)
    world.fault(call, when, "kill target")
    codes = []
    try:
        for do in (*CHANGES, "state"):
            codes.append(helper.call(do, pid, deadline=10, pidfd=pidfd).code)
    except TargetEnded:
        pass
    finally:
        os.close(pidfd)
    assert len(codes) <= len(CHANGES)
    assert not alive(pid)
    assert world.memory()[0].used == 0


def test_the_target_is_killed_while_the_call_hangs(world: World) -> None:
    pid = world.target()
    pidfd = os.pidfd_open(pid)
    world.fault("checkpoint", "before", "hang")
    with CheckpointHelper(str(world.library)) as helper:
        helper.call("lock", pid, deadline=10)
        started = time.monotonic()
        world.targets[0].kill()
        with pytest.raises(TargetEnded):
            helper.call("checkpoint", pid, deadline=60, pidfd=pidfd)
        assert time.monotonic() - started < 30
    os.close(pidfd)


CLIENT = """
import os, sys
sys.path.insert(0, {repository!r})
from gpuiso.reclaim.checkpoint import CheckpointHelper
open({directory!r} + "/client", "w").write(str(os.getpid()))
helper = CheckpointHelper({library!r})
for do in {calls!r}:
    helper.call(do, {pid}, deadline=30)
helper.call("keep", {pid}, deadline=30)
"""


def run_client(world: World, pid: int, calls: tuple[str, ...] = CHANGES) -> int:
    """A client of its own process; its exit status."""
    program = CLIENT.format(
        repository=str(REPOSITORY), directory=str(world.directory), library=str(world.library), pid=pid, calls=calls
    )
    return subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=False, timeout=60).returncode


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("call", CHANGES)
def test_the_client_is_killed(world: World, call: str, when: str) -> None:
    pid = world.target()
    world.fault(call, when, "kill client")
    assert run_client(world, pid) == -signal.SIGKILL
    assert settled(world, pid) == ProcessState.RUNNING
    assert list(world.memory()[0].processes) == [pid]


def test_what_is_kept_stays(world: World) -> None:
    pid = world.target()
    assert run_client(world, pid, ("lock", "checkpoint")) == 0
    assert settled(world, pid, ProcessState.CHECKPOINTED) == ProcessState.CHECKPOINTED


def test_a_call_past_its_deadline_is_undone_when_it_returns(world: World) -> None:
    pid = world.target()
    world.fault("checkpoint", "after", "hang")
    with CheckpointHelper(str(world.library)) as helper:
        helper.call("lock", pid, deadline=10)
        with pytest.raises(TimedOut):
            helper.call("checkpoint", pid, deadline=0.3)
    with CheckpointHelper(str(world.library)) as second:
        assert second.state(pid)[1] == ProcessState.CHECKPOINTED
    (world.directory / "release").touch()
    assert settled(world, pid) == ProcessState.RUNNING


def leave_in_a_call(world: World, pid: int) -> int:
    """The pid of a helper whose client is gone while the driver hangs."""
    (world.directory / "release").unlink(missing_ok=True)
    world.fault("lock", "before", "hang")
    helper = CheckpointHelper(str(world.library))
    with pytest.raises(TimedOut):
        helper.call("lock", pid, deadline=0.2)
    assert helper.close() is False
    return helper.pid


def test_a_helper_that_was_left_is_waited_for_once_it_ended(world: World) -> None:
    pid = world.target()
    first = leave_in_a_call(world, pid)
    (world.directory / "release").touch()
    limit = time.monotonic() + 20
    while alive(first):
        assert time.monotonic() < limit
        time.sleep(0.01)
    assert Path(f"/proc/{first}").exists()
    second = leave_in_a_call(world, pid)
    assert not Path(f"/proc/{first}").exists()
    assert alive(second)


def test_late_answers_are_not_taken_for_new_ones(world: World) -> None:
    pid = world.target()
    world.fault("state", "before", "hang")
    with CheckpointHelper(str(world.library)) as helper:
        with pytest.raises(TimedOut):
            helper.state(pid, deadline=0.2)
        (world.directory / "release").touch()
        assert helper.call("lock", pid, deadline=10).value is None
        assert helper.state(pid)[1] == ProcessState.LOCKED
        helper.call("unlock", pid, deadline=10)


def test_a_frozen_target_hangs_and_goes_on(world: World) -> None:
    pid = world.target()
    with CheckpointHelper(str(world.library)) as helper:
        world.targets[0].send_signal(signal.SIGSTOP)
        while world.state(pid) != "T":
            time.sleep(0.01)
        with pytest.raises(TimedOut):
            helper.call("lock", pid, deadline=0.3)
        world.targets[0].send_signal(signal.SIGCONT)
        assert helper.call("back", pid, deadline=10).value == ProcessState.RUNNING


def test_back_tries_again(world: World, helper: CheckpointHelper) -> None:
    pid = world.target()
    helper.call("lock", pid, deadline=10)
    helper.call("checkpoint", pid, deadline=10)
    world.fault("restore", "before", "fail 304")
    assert helper.call("back", pid, deadline=10).value == ProcessState.RUNNING


def test_back_says_what_stops_it(world: World, helper: CheckpointHelper) -> None:
    pid = world.target()
    helper.call("lock", pid, deadline=10)
    helper.call("checkpoint", pid, deadline=10)
    world.deny(0)
    answer = helper.call("back", pid, deadline=10)
    assert (answer.code, answer.value) == (100, ProcessState.CHECKPOINTED)
    world.deny(0, denied=False)
    assert helper.call("back", pid, deadline=10).value == ProcessState.RUNNING
