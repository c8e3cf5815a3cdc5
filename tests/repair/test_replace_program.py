# SPDX-License-Identifier: Apache-2.0
"""A stranger's program is replaced, and comes back whatever fails."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from gpuiso.apply.engine import carry_out
from gpuiso.apply.plan import Plan
from gpuiso.apply.recover import recover
from gpuiso.apply.remove import remove
from gpuiso.apply.steps.replace_program import REPAIRED_NAME, ReplaceProgram
from gpuiso.apply.target import find_cgroup
from gpuiso.devfilter.compile import compile_rules
from gpuiso.devfilter.insn import pack
from gpuiso.devfilter.widen import widen
from gpuiso.errors import FailedAndUndone
from gpuiso.host.device_programs import query_device_programs
from gpuiso.host.live import LiveHost
from gpuiso.host.protocol import DeviceProgram
from gpuiso.kernel import bpf
from gpuiso.policy.parse import parse_rules
from gpuiso.policy.rule import READ, WRITE
from tests.apply.conftest import world as world  # the fixture
from tests.apply.faults import Die, Fail, snapshot
from tests.apply.world import World
from tests.tiers import requires

pytestmark = requires("kernel")

OLD = pack(compile_rules(parse_rules("allow c 1:3 rw"), default_allow=False))


@pytest.fixture
def plan(world: World) -> Plan:
    """One that widens the program of a stranger, which is attached."""
    directory = os.open(world.top, os.O_RDONLY | os.O_DIRECTORY)
    program = bpf.prog_load(OLD, name="stranger")
    try:
        bpf.prog_attach(directory, program)
    finally:
        os.close(program)
        os.close(directory)
    target = find_cgroup(LiveHost(), world.calls, world.name())
    assert target.v2 is not None
    (old,) = attached(world.top)
    assert old.insns is not None
    new = widen(old.insns, [("c", 195, 0, READ | WRITE)])
    step = ReplaceProgram(target.v2.mount, target.v2.cgroup, old.id, old.insns.hex(), new.hex(), "c 195:0 rw")
    return Plan(target, (step,), None, {})


def attached(top: Path) -> list[DeviceProgram]:
    return list(query_device_programs(str(top), "/") or ())


def test_there_and_back(world: World, plan: Plan) -> None:
    carry_out(plan, state=world.state, calls=world.calls)
    assert [program.name for program in attached(world.top)] == [REPAIRED_NAME]
    remove(plan.target, state=world.state, calls=world.calls)
    assert [(program.name, program.insns) for program in attached(world.top)] == [("stranger", OLD)]


def test_a_failure_at_any_call(world: World, plan: Plan) -> None:
    before = snapshot(world.top, world.run)
    for number in range(1, 100):
        try:
            carry_out(plan, state=world.state, calls=Fail(number, done=number % 2 == 0))
        except FailedAndUndone:
            assert snapshot(world.top, world.run) == before
        else:
            break
    assert number > 10


def test_a_death_at_any_call(world: World, plan: Plan) -> None:
    for number in range(1, 100):
        child = os.fork()
        if child == 0:
            try:
                (now,) = attached(world.top)
                carry_out(again(plan, now.id), state=world.state, calls=Die(number, done=True))
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        recover(world.state, world.calls)
        (now,) = attached(world.top)
        if now.name == REPAIRED_NAME:
            break
        assert (now.name, now.insns) == ("stranger", OLD)
        assert os.WIFSIGNALED(status)
    assert number > 10


def again(plan: Plan, program: int) -> Plan:
    """The plan for the program's present id: a crash frees the old one, and its like is loaded."""
    (step,) = plan.steps
    assert isinstance(step, ReplaceProgram)
    return dataclasses.replace(plan, steps=(dataclasses.replace(step, program=program),))


def test_another_program_by_now(world: World, plan: Plan) -> None:
    carry_out(plan, state=world.state, calls=world.calls)
    with pytest.raises(FailedAndUndone, match="is no more attached"):
        carry_out(plan, state=world.state, calls=world.calls)
