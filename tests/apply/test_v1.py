# SPDX-License-Identifier: Apache-2.0
"""The devices controller of cgroup v1, alone and beside the v2 tree, where this host has it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuiso.apply.engine import carry_out
from gpuiso.apply.plan_cgroup import plan_cgroup
from gpuiso.apply.remove import remove
from gpuiso.apply.target import find_cgroup
from gpuiso.errors import FailedAndUndone, NotSupported
from gpuiso.host.cgroup_mounts import cgroup_mount
from gpuiso.host.live import LiveHost
from tests.apply.faults import Fail
from tests.apply.world import World, policy
from tests.tiers import requires

pytestmark = requires("kernel")


@pytest.fixture
def v1(world: World) -> Iterator[Path]:
    """A cgroup of the devices hierarchy with a name that the v2 tree does not have."""
    mount = cgroup_mount(LiveHost(), "devices")
    if mount is None:
        pytest.skip("no devices controller of cgroup v1 here")
    path = Path(mount, f"{world.top.name}-v1")
    path.mkdir()
    yield path
    path.rmdir()


def devices(path: Path) -> set[str]:
    return set((path / "devices.list").read_text().splitlines())


def test_an_allow_list_and_back(world: World, v1: Path) -> None:
    target = find_cgroup(LiveHost(), world.calls, str(v1))
    assert (target.v2, target.v1 is not None) == (None, True)
    plan = plan_cgroup(world.calls, target, policy("allow c 1:3 rw\nallow c 195:* rw\nallow c 1:5 r"))
    outcome = carry_out(plan, state=world.state, calls=world.calls)
    assert devices(v1) == {"c 1:3 rw", "c 195:* rw", "c 1:5 r"}
    assert any("tried from a child inside: as the policy says" in line for line in outcome.proof.said)
    second = plan_cgroup(world.calls, target, policy("allow c 1:3 rw\nallow c 1:5 rw"))
    carry_out(second, state=world.state, calls=world.calls)
    assert devices(v1) == {"c 1:3 rw", "c 1:5 rw"}
    remove(target, state=world.state, calls=world.calls)
    assert devices(v1) == {"a *:* rwm"}


def test_a_failure_at_any_call_changes_nothing(world: World, v1: Path) -> None:
    target = find_cgroup(LiveHost(), world.calls, str(v1))
    carry_out(
        plan_cgroup(world.calls, target, policy("allow c 1:3 rw\nallow c 195:0 rw")),
        state=world.state,
        calls=world.calls,
    )
    before = devices(v1)
    plan = plan_cgroup(world.calls, target, policy("allow c 1:3 r\nallow c 195:1 rw"))
    for number in range(1, 100):
        calls = Fail(number, done=number % 2 == 1)
        try:
            carry_out(plan, state=world.state, calls=calls)
        except FailedAndUndone:
            assert devices(v1) == before, calls.log[number - 1]
        else:
            break
    assert number > 15
    assert devices(v1) == {"c 1:3 r", "c 195:1 rw"}


def test_what_v1_cannot_say_is_refused(world: World, v1: Path) -> None:
    target = find_cgroup(LiveHost(), world.calls, str(v1))
    with pytest.raises(NotSupported, match=r"memory\.max cannot be written"):
        plan_cgroup(world.calls, target, policy("gpuiso: 1\nmemory.max: 1G"))
    with pytest.raises(NotSupported):
        plan_cgroup(world.calls, target, policy("allow c 195:* rw\ndeny c 195:0 r\nallow b *:* r\ndeny b 8:0 r"))


def test_both_hierarchies_hold_it(world: World, v1: Path) -> None:
    both = world.top.parent / v1.name
    both.mkdir()
    try:
        target = find_cgroup(LiveHost(), world.calls, f"/{v1.name}")
        assert None not in (target.v2, target.v1)
        plan = plan_cgroup(world.calls, target, policy("allow c 1:3 rw"))
        carry_out(plan, state=world.state, calls=world.calls)
        assert devices(v1) == {"c 1:3 rw"}
        # What v1 cannot say the program holds alone.
        hole = plan_cgroup(world.calls, target, policy("allow c 1:* rw\ndeny c 1:5 r\nallow b *:* r\ndeny b 8:0 r"))
        assert any("cgroup v1 stays as it is" in note for note in hole.notes)
        with pytest.raises(FailedAndUndone, match=r"the policy allows .* but a process inside is denied it"):
            carry_out(hole, state=world.state, calls=world.calls)
        remove(target, state=world.state, calls=world.calls)
        assert devices(v1) == {"a *:* rwm"}
    finally:
        os.rmdir(both)
