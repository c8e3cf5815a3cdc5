# SPDX-License-Identifier: Apache-2.0
"""Cgroups that gpuiso made and that others use when the rules go, and targets that keep no other from being changed."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from gpuiso.apply.applied import load_applied
from gpuiso.apply.calls import Calls
from gpuiso.apply.engine import carry_out
from gpuiso.apply.journal import Journal
from gpuiso.apply.plan_pid import plan_pid
from gpuiso.apply.recover import recover
from gpuiso.apply.remove import Removed, remove
from gpuiso.apply.steps import WriteLimit
from gpuiso.apply.target import find_cgroup
from gpuiso.cli.rules.target import existing_target
from gpuiso.errors import FailedAndUndone, GpuisoError, NotUndone
from gpuiso.host.device_programs import query_device_programs
from gpuiso.host.live import LiveHost
from tests.apply.faults import Counted, Die, Fail
from tests.apply.world import World, policy
from tests.tiers import cgroup2_mount, requires

pytestmark = requires("kernel")

RULES = policy("allow default-nodes")


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cgroup that stays busy is tried for 7 ms instead of a second."""
    monkeypatch.setattr("gpuiso.apply.calls._RMDIR_TRIES", 4)


@pytest.fixture
def sleeper() -> Iterator[int]:
    process = subprocess.Popen(["sleep", "100"])
    yield process.pid
    process.kill()
    process.wait()


def enter(cgroup: Path, pid: int) -> None:
    (cgroup / "cgroup.procs").write_text(str(pid))


def take_away(world: World, *below: str, calls: Calls | None = None) -> Removed:
    target = find_cgroup(LiveHost(), world.calls, world.name(*below))
    return remove(target, state=world.state, calls=calls or world.calls)


def programs(cgroup: Path) -> int:
    return len(query_device_programs(str(cgroup), str(cgroup)) or ())


def test_a_cgroup_with_processes_is_left(world: World, sleeper: int) -> None:
    world.apply(RULES, "a")
    enter(world.top / "a", sleeper)
    removed = take_away(world, "a")
    assert removed.done[-1] == f"left the cgroup {world.top}/a: processes are in it"
    assert programs(world.top / "a") == 0
    assert load_applied(world.state, f"cgroup {world.name('a')}") is None
    assert recover(world.state, world.calls) == []
    world.apply(RULES, "b")
    take_away(world, "b")
    assert not (world.top / "b").exists()


def test_a_cgroup_with_cgroups_is_left_and_they_can_go(world: World) -> None:
    limited = "hugetlb" in (world.top / "cgroup.controllers").read_text()
    wanted = policy("gpuiso: 1\ndevices:\n- allow default-nodes\n" + ("hugetlb.2MB.max: 4M" if limited else ""))
    world.apply(wanted, "a")
    world.apply(wanted, "a", "sub")
    above = (world.top / "cgroup.subtree_control").read_text()
    said = take_away(world, "a").done
    assert f"left the cgroup {world.top}/a: cgroups are in it" in said
    if limited:
        file = world.top / "cgroup.subtree_control"
        assert f"left hugetlb enabled in {file}: cgroups below {world.name('a')} use it" in said
        assert file.read_text() == above
        assert (world.top / "a" / "sub" / "hugetlb.2MB.max").read_text() == "4194304\n"
    take_away(world, "a", "sub")
    assert not (world.top / "a" / "sub").exists()


def test_a_process_that_went_into_a_cgroup_of_its_own(world: World, sleeper: int) -> None:
    enter(world.top, sleeper)
    host = LiveHost()
    plan = plan_pid(host, world.calls, sleeper, RULES)
    carry_out(plan, state=world.state, calls=world.calls)
    assert plan.target.v2 is not None
    made = Path(plan.target.v2.directory)
    (made / "inner").mkdir()
    enter(made / "inner", sleeper)
    assert plan_pid(LiveHost(), world.calls, sleeper, RULES).target.key == plan.target.key
    target = existing_target(LiveHost(), world.calls, pid=sleeper)
    assert target.key == plan.target.key
    removed = remove(target, state=world.state, calls=world.calls)
    assert f"left the cgroup {made}: cgroups are in it" in removed.done
    assert programs(made) == 0


def test_what_a_failed_change_cannot_take_away_is_named(world: World, sleeper: int) -> None:
    class Taken(Calls):
        def prog_attach(self, directory: int, program: int) -> None:
            enter(world.top / "a", sleeper)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    words = f"; what had been done was undone; left the cgroup {world.top}/a: processes are in it$"
    with pytest.raises(FailedAndUndone, match=words):
        world.apply(RULES, "a", calls=Taken())
    assert world.state.interrupted() == []


@pytest.mark.parametrize("death", [False, True], ids=["failure", "death"])
def test_a_removal_is_finished_wherever_it_broke_off(world: World, sleeper: int, *, death: bool) -> None:
    """At every single call, with somebody in the cgroup."""
    key = f"cgroup {world.name('a')}"
    broken = 0
    for number in count(1):
        world.apply(RULES, "a")
        enter(world.top / "a", sleeper)
        calls: Counted = Die(number, done=False) if death else Fail(number, done=False)
        over = ended(world, calls, death=death)
        if not over:
            broken += 1
            began = load_applied(world.state, key)
            if began is not None and began.removing:
                assert recover(world.state, world.calls)[0] == f"finished the removal of the rules of {key}"
            elif began is not None:
                take_away(world, "a")
        assert load_applied(world.state, key) is None, f"call {number}"
        assert programs(world.top / "a") == 0
        enter(world.top, sleeper)
        (world.top / "a").rmdir()
        if over:
            break
    assert broken > 8


def ended(world: World, calls: Counted, *, death: bool) -> bool:
    """Whether the removal came to its end."""
    pid = os.fork() if death else 0
    if pid:
        status = os.waitpid(pid, 0)[1]
        assert status == 0 or os.WTERMSIG(status) == signal.SIGKILL
        return status == 0
    try:
        take_away(world, "a", calls=calls)
    except (GpuisoError, OSError):
        return False
    finally:
        if death:
            os._exit(0)
    return True


def stuck(world: World) -> WriteLimit:
    """A step that cannot be undone: the kernel does not take what was there before."""
    (world.top / "stuck").mkdir()
    mount = cgroup2_mount()
    return WriteLimit(str(mount), world.name("stuck"), "cgroup.max.depth", ("5",))


@pytest.mark.parametrize("how", ["journal", "removal"])
def test_what_cannot_be_put_right_stops_its_own_target_alone(world: World, how: str) -> None:
    world.state.prepare()
    step, key = stuck(world), f"cgroup {world.name('stuck')}"
    if how == "journal":
        journal = Journal(world.calls, world.state.new_journal())
        journal.open({"target": key})
        journal.begin(step, {"content": "nonsense"})
        journal.close()
    else:
        applied = world.apply(policy("gpuiso: 1\ncgroup.max.depth: 5"), "stuck").applied
        text = applied.as_text().replace('"content": "max\\n"', '"content": "nonsense"')
        assert "nonsense" in text
        world.state.policy(key).write_text(text.replace('"removing": false', '"removing": true'))
    recovered = world.apply(RULES, "b").recovered
    assert [line.partition(", and ")[0] for line in recovered] == [f"could not be put right of {key}"]
    assert take_away(world, "b").recovered == recovered
    for change in (lambda: world.apply(RULES, "stuck"), lambda: take_away(world, "stuck")):
        with pytest.raises(NotUndone, match=r"could not be put right: .*cgroup\.max\.depth"):
            change()
    with pytest.raises(NotUndone, match=r"could not be put right: .*cgroup\.max\.depth"):
        recover(world.state, world.calls)
