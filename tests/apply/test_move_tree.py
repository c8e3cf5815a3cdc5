# SPDX-License-Identifier: Apache-2.0
"""A tree that forks all the time is moved as a whole, and back."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuiso.apply.calls import Calls
from gpuiso.apply.engine import carry_out
from gpuiso.apply.plan_pid import plan_pid
from gpuiso.apply.recover import recover
from gpuiso.apply.remove import remove
from gpuiso.errors import FailedAndUndone, NotFound, NotSupported
from gpuiso.host.device_programs import query_device_programs
from gpuiso.host.live import LiveHost
from tests.apply.faults import Counted, Fail
from tests.apply.world import World, policy
from tests.tiers import requires

pytestmark = requires("kernel")

# Forks children that fork a grandchild and end: their grandchildren lose their parents at any moment.
BUSY = """
import os, signal, sys, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
print("ready", flush=True)
while True:
    if os.fork() == 0:
        if os.fork() == 0:
            time.sleep(float(sys.argv[1]))
            os._exit(0)
        os._exit(0)
    time.sleep(0.001)
"""


@contextmanager
def running(cgroup: Path, *argv: str) -> Iterator[subprocess.Popen[str]]:
    """A process that starts inside a cgroup; whoever is in there is killed in the end by the fixture."""
    enter = 'echo $$ >"$1/cgroup.procs"; shift; exec "$@"'
    process = subprocess.Popen(
        ["sh", "-ec", enter, "sh", str(cgroup), *argv], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def pids_in(cgroup: Path) -> set[int]:
    return {int(word) for word in (cgroup / "cgroup.procs").read_text().split()}


def test_no_fork_is_lost(world: World) -> None:
    busy = [sys.executable, "-I", "-S", "-c", BUSY, "0.3"]
    with running(world.top, *busy) as process:
        time.sleep(0.2)
        plan = plan_pid(LiveHost(), world.calls, process.pid, policy("allow default-nodes"))
        place = plan.target.v2
        assert place is not None
        new = Path(place.directory)
        assert new.parent == world.top
        carry_out(plan, state=world.state, calls=world.calls)
        assert pids_in(world.top) == set()
        assert len(pids_in(new)) > 20
        # Moving again finds it where it is: nothing new is made.
        again = plan_pid(LiveHost(), world.calls, process.pid, policy("allow c 1:3 rw"))
        assert again.target.key == plan.target.key
        removed = remove(plan.target, state=world.state, calls=world.calls)
        assert any("processes back" in line for line in removed.done)
        assert not new.exists()
        assert process.pid in pids_in(world.top)
        process.kill()


SLEEPER = "print('ready', flush=True); import time; time.sleep(100)"


def test_the_cgroup_of_a_process_that_ended_is_taken_away(world: World) -> None:
    limited = "hugetlb" in (world.top / "cgroup.controllers").read_text()
    wanted = policy("gpuiso: 1\ndevices:\n- allow default-nodes\n" + ("hugetlb.2MB.max: 4M" if limited else ""))
    (world.top / "home").mkdir()
    with running(world.top / "home", sys.executable, "-I", "-S", "-c", SLEEPER) as process:
        # A limit only when the process has moved: controllers are for the children of a cgroup without processes.
        plan = plan_pid(LiveHost(), world.calls, process.pid, policy("allow default-nodes"))
        carry_out(plan, state=world.state, calls=world.calls)
        again = plan_pid(LiveHost(), world.calls, process.pid, wanted)
        carry_out(again, state=world.state, calls=world.calls)
        place = plan.target.v2
        assert place is not None
        made, record = Path(place.directory), world.state.policy(plan.target.key)
        assert recover(world.state, world.calls) == []
        process.kill()
        process.wait()
        (made / "somebodys").mkdir()
        assert recover(world.state, world.calls) == []
        assert (made.exists(), record.exists()) == (True, True)
        (made / "somebodys").rmdir()
        said = list(world.apply(policy("allow c 1:3 r"), "other").recovered)
        assert said[:2] == [f"the process that {plan.target.key} was made for has ended", f"removed the cgroup {made}"]
        assert (made.exists(), record.exists()) == (False, False)
        assert (world.top / "home" / "cgroup.subtree_control").read_text().strip() == ""
        assert recover(world.state, world.calls) == []


def test_a_cgroup_that_somebody_enters_at_the_last_moment_keeps_its_rules(world: World) -> None:
    class Entered(Calls):
        def rmdir(self, directory: int, name: str) -> None:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    with running(world.top, sys.executable, "-I", "-S", "-c", SLEEPER) as process:
        plan = plan_pid(LiveHost(), world.calls, process.pid, policy("allow default-nodes"))
        carry_out(plan, state=world.state, calls=world.calls)
    assert plan.target.v2 is not None
    made = plan.target.v2.directory
    assert recover(world.state, Entered()) == []
    assert len(query_device_programs(made, made) or ()) == 1
    assert world.state.policy(plan.target.key).exists()
    # Whoever asks for that very one takes it away himself.
    assert f"removed the cgroup {made}" in remove(plan.target, state=world.state, calls=world.calls).done


def test_a_failure_at_any_call_moves_it_back(world: World) -> None:
    with running(world.top, sys.executable, "-I", "-S", "-c", SLEEPER) as process:
        plan = plan_pid(LiveHost(), world.calls, process.pid, policy("allow default-nodes"))
        for number in range(1, 200):
            calls = Fail(number, done=number % 2 == 0)
            try:
                carry_out(plan, state=world.state, calls=calls)
            except FailedAndUndone:
                assert pids_in(world.top) == {process.pid}, calls.log[number - 1]
                assert [path for path in world.top.iterdir() if path.is_dir()] == []
            else:
                break
        assert number > 25
        assert pids_in(world.top) == set()
        assert recover(world.state, world.calls) == []
        process.kill()


def test_what_cannot_be_moved_is_named(world: World) -> None:
    host = LiveHost()
    with pytest.raises(NotSupported, match="is the init process"):
        plan_pid(host, world.calls, 1, policy("allow c 1:3 r"))
    with pytest.raises(NotFound, match="no process 4194305"):
        plan_pid(host, world.calls, 4194305, policy("allow c 1:3 r"))


def test_a_process_that_ended_meanwhile_leaves_nothing(world: World) -> None:
    with running(world.top, sys.executable, "-I", "-S", "-c", SLEEPER) as process:
        plan = plan_pid(LiveHost(), world.calls, process.pid, policy("allow default-nodes"))
        process.kill()
        process.wait()
        with pytest.raises(FailedAndUndone, match=f"process {process.pid} ended; what had been done was undone"):
            carry_out(plan, state=world.state, calls=Counted())
    assert [path for path in world.top.iterdir() if path.is_dir()] == []
