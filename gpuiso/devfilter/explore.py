# SPDX-License-Identifier: Apache-2.0
"""Follow every path of a device program and say which devices it allows.

There are 2 device types and 8 access masks only, so those are tried one by one; the device numbers
stay open. Each jump on them splits the set of devices that take it, and paths that
meet in the same state go on together.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gpuiso.devfilter import insn as op
from gpuiso.devfilter.insn import Insn
from gpuiso.devfilter.interpret import DEVICE_TYPE_NUMBERS
from gpuiso.devfilter.liveness import jump_targets, live_registers
from gpuiso.devfilter.machine import Branch, Join, Machine, Return, State, Stuck
from gpuiso.devfilter.solve import split
from gpuiso.devfilter.spans import Region
from gpuiso.devfilter.values import Expression, HelperNames, Maps, Unknown, Value, Variable
from gpuiso.policy.rule import ALL_ACCESS, DeviceType

__all__ = ["Answers", "explore"]

_MAX_STEPS = 1_000_000


@dataclass(slots=True)
class Answers:
    """What a program answers for one device type and access mask; the regions may overlap.

    A device in both ``allowed`` and ``denied``, or in ``stuck``, has no known answer; ``reasons``
    say why.
    """

    allowed: Region = field(default_factory=Region)
    denied: Region = field(default_factory=Region)
    stuck: Region = field(default_factory=Region)
    reasons: list[str] = field(default_factory=list)


def explore(
    program: Sequence[Insn],
    masks: Iterable[int] = range(ALL_ACCESS + 1),
    *,
    maps: Maps | None = None,
    helpers: HelperNames | None = None,
    max_steps: int = _MAX_STEPS,
) -> dict[tuple[DeviceType, int], Answers]:
    """The answers of a program for every (type, access mask); ``max_steps`` bounds all of these together."""
    live, targets = live_registers(program), jump_targets(program)
    answers: dict[tuple[DeviceType, int], Answers] = {}
    masks, left = tuple(masks), max_steps
    for device, number in DEVICE_TYPE_NUMBERS.items():
        for mask in masks:
            machine = Machine(
                program,
                mask << 16 | number,
                Variable("major"),
                Variable("minor"),
                maps=maps,
                helpers=helpers,
                steps_left=left,
                stops=targets,
            )
            answers[device, mask] = _Walk(machine, live).walk()
            left = machine.steps_left
    return answers


class _Walk:
    """One machine and the states it has yet to run, the lowest instruction first.

    Programs mostly jump forwards, so by the time an instruction is reached all paths to it have
    arrived and were merged.
    """

    def __init__(self, machine: Machine, live: Sequence[int]) -> None:
        self._machine, self._live = machine, live
        self._waiting: dict[tuple[object, ...], tuple[State, Region]] = {}
        self._queue: list[tuple[int, int, tuple[object, ...]]] = []
        self._count = 0
        self._answers = Answers()

    def walk(self) -> Answers:
        self._put(State.start(), Region.everything())
        while self._queue:
            _, _, key = heapq.heappop(self._queue)
            state, region = self._waiting.pop(key)
            event = self._machine.run(state)
            if isinstance(event, Join):
                self._put(event.state, region)
            elif isinstance(event, Branch):
                self._branch(event, region)
            elif isinstance(event, Return):
                self._finish(event.value, region)
            else:
                self._stuck(event, region)
        return self._answers

    def _put(self, state: State, region: Region) -> None:
        if not region.rows:
            return
        live = self._live[state.pc] if 0 <= state.pc < len(self._live) else 0
        regs = tuple(value for index, value in enumerate(state.regs) if live >> index & 1)
        key = (state.pc, regs, state.frames, state.memory.key())
        if key in self._waiting:
            self._waiting[key][1].add(region)
            return
        self._waiting[key] = (state, region)
        self._count += 1
        heapq.heappush(self._queue, (state.pc, self._count, key))

    def _branch(self, event: Branch, region: Region) -> None:
        state = event.state
        why = _undecidable(event.left, event.right)
        taken = None if why else self._split(region, event.operation, event.left, event.right, event.bits)
        if taken is None:
            self._doubt(why or "it compares device numbers in a way that is not followed")
            taken = region.copy()
            self._machine.steps_left -= len(region.rows)
        if taken.rows and region.rows:
            self._put(state.fork(event.taken), taken)
            self._put(state.fork(event.otherwise), region)
            return
        state.pc = event.taken if taken.rows else event.otherwise
        self._put(state, taken if taken.rows else region)

    def _finish(self, value: Value, region: Region) -> None:
        if isinstance(value, int):
            (self._answers.allowed if value & 0xFFFF_FFFF else self._answers.denied).add(region)
            return
        why = _undecidable(value)
        allowed = None if why else self._split(region, op.JNE, value, 0, 32)
        if allowed is None:
            self._doubt(why or "it computes its answer in a way that is not followed")
            self._answers.stuck.add(region)
            return
        self._answers.allowed.add(allowed)
        self._answers.denied.add(region)

    def _split(self, region: Region, operation: int, left: Value, right: Value, bits: int) -> Region | None:
        taken, work = split(region, operation, left, right, bits)
        self._machine.steps_left -= work
        return taken

    def _stuck(self, event: Stuck, region: Region) -> None:
        self._doubt(event.why)
        self._answers.stuck.add(region)

    def _doubt(self, why: str) -> None:
        if why not in self._answers.reasons:
            self._answers.reasons.append(why)


def _undecidable(*values: Value) -> str:
    for value in values:
        if isinstance(value, Unknown):
            return value.why
    if all(isinstance(value, (int, Variable, Expression)) for value in values):
        return ""
    return "it compares addresses"
