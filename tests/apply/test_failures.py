# SPDX-License-Identifier: Apache-2.0
"""A failure or a death at every single call of a plan: afterwards everything is as it was, or as it should be."""

from __future__ import annotations

import os
import re
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from gpuiso.apply.engine import carry_out
from gpuiso.apply.plan_cgroup import plan_cgroup
from gpuiso.apply.recover import recover
from gpuiso.apply.target import find_cgroup
from gpuiso.errors import FailedAndUndone, GpuisoError, NotFound, NotUndone
from gpuiso.host.live import LiveHost
from gpuiso.policy.resolve import ResolvedPolicy
from tests.apply.faults import At, Counted, Die, Fail, FailFrom, snapshot
from tests.apply.world import World, policy
from tests.children import in_child
from tests.tiers import requires

pytestmark = requires("kernel")

FIRST = "allow default-nodes\nallow c 195:0 rw\nallow c 195:255 rw\n"
SECOND = "allow default-nodes\nallow c 195:1 rw\nallow c 195:255 rw\ndeny c 1:5 w\n"


def limited(rules: str, limit: str | None) -> ResolvedPolicy:
    """The rules, and a limit of a controller that this host's cgroup2 tree has, if any."""
    lines = ["gpuiso: 1", "devices:", *(f"- {line}" for line in rules.splitlines())]
    return policy("\n".join(lines + ([] if limit is None else [limit])))


def a_limit(world: World, size: int) -> str | None:
    available = (world.top / "cgroup.controllers").read_text().split()
    for controller, line in (("pids", f"pids.max: {size}"), ("hugetlb", f"hugetlb.2MB.max: {size * 2}M")):
        if controller in available:
            return line
    return None


class Case:
    """An apply to a cgroup two levels below the test's own: the first one there, or one over another."""

    def __init__(self, world: World, *, again: bool) -> None:
        self.world = world
        if again:
            world.apply(limited(FIRST, a_limit(world, 100)), "a", "b")
        self.wanted = limited(SECOND, a_limit(world, 200))

    def run(self, calls: Counted) -> None:
        plan = self.world.plan(self.wanted, "a", "b")
        carry_out(plan, state=self.world.state, calls=calls)

    def state(self, *, ids: bool = True) -> dict[str, object]:
        return snapshot(self.world.top, self.world.run, ids=ids)


@pytest.fixture(params=[False, True], ids=["first", "again"])
def case(request: pytest.FixtureRequest, world: World) -> Case:
    world.state.prepare()
    return Case(world, again=request.param)


class Rmdir(At):
    """Somebody removes the cgroup."""

    def __init__(self, number: int, place: Path) -> None:
        super().__init__(number, done=False)
        self.place = place
        self.removed = False

    def happen(self) -> None:
        if self.place.exists():
            self.place.rmdir()
            self.removed = True


def raised(case: Case, calls: Counted) -> GpuisoError | None:
    """The error that the apply ends with, None if it succeeds."""
    try:
        case.run(calls)
    except (FailedAndUndone, NotUndone) as error:
        return error
    return None


@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
def test_a_failure_at_any_call_leaves_everything_as_it_was(case: Case, *, done: bool) -> None:
    before = case.state()
    for number in count(1):
        calls = Fail(number, done=done)
        error = raised(case, calls)
        if error is None:
            assert number == len(calls.log) + 1 > 30
            break
        assert isinstance(error, FailedAndUndone)
        assert "Input/output error" in error.message
        assert case.state() == before, f"call {number}, {calls.log[number - 1]}"
    assert case.state() != before


def test_what_could_not_be_undone_is_named_and_recover_undoes_it(case: Case) -> None:
    before = case.state(ids=False)
    left_behind = 0
    for number in count(1):
        calls = FailFrom(number)
        error = raised(case, calls)
        if error is None:
            break
        said = recover(case.world.state, case.world.calls)
        if isinstance(error, NotUndone):
            left_behind += 1
            assert re.search(r"and could not be undone: .", error.message)
            assert error.hint == "gpuiso recover tries again"
            assert said != []
        assert case.world.state.interrupted() == []
        assert case.state(ids=False) == before, f"calls from {number}, {calls.log[number - 1]}"
    assert left_behind > 20


@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
def test_a_death_at_any_call_is_recovered(case: Case, *, done: bool) -> None:
    before = case.state(ids=False)
    deaths = 0
    for number in count(1):
        status = in_child(partial(case.run, Die(number, done=done)))
        if status == 0:
            break
        assert os.WIFSIGNALED(status), f"call {number}"
        deaths += 1
        said = recover(case.world.state, case.world.calls)
        assert recover(case.world.state, case.world.calls) == []
        assert case.world.state.interrupted() == []
        if done and case.state(ids=False) != before:
            assert said == []  # it died when everything was over
            break
        assert case.state(ids=False) == before, f"call {number}: {said}"
    assert case.state(ids=False) != before
    assert deaths > 30


@pytest.mark.parametrize("create", [False, True], ids=["there", "made"])
def test_a_cgroup_that_is_removed_meanwhile_is_not_found(world: World, *, create: bool) -> None:
    """By rmdir(2) before every single call of the plan, also of those that verify."""
    world.state.prepare()
    cgroup = world.top / "a"
    said: list[str] = []
    for number in count(1):
        if not create:
            cgroup.mkdir()
        calls = Rmdir(number, cgroup)
        plan = world.plan(policy(FIRST), "a")
        try:
            carry_out(plan, state=world.state, calls=calls)
        except NotFound as error:
            said.append(error.message)
        else:
            if cgroup.exists():
                cgroup.rmdir()
            recover(world.state, world.calls)
        assert snapshot(world.top, world.run).keys() == {str(world.top)}, f"call {number}"
        if len(calls.log) < number:
            break
    assert len(said) > 10
    assert {words.partition("; ")[0] for words in said} == {f"the cgroup {cgroup} was removed meanwhile"}


def test_a_cgroup_that_is_gone_before_the_first_step_is_not_made_again(world: World) -> None:
    (world.top / "a").mkdir()
    target = find_cgroup(LiveHost(), world.calls, world.name("a"))
    (world.top / "a").rmdir()
    with pytest.raises(NotFound, match="was removed meanwhile; nothing had been changed"):
        carry_out(plan_cgroup(world.calls, target, policy(FIRST)), state=world.state, calls=world.calls)
    assert not (world.top / "a").exists()
