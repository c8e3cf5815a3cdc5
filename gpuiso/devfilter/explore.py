# SPDX-License-Identifier: Apache-2.0
"""Follow every path of a device program and say which devices it allows.

There are 2 device types and 8 access masks only, so those are tried one by one; the device numbers
stay open. Each jump on them splits the set of devices that take it, and paths that
meet in the same state go on together.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from gpuiso.devfilter import insn as op
from gpuiso.devfilter.alu import arithmetic, compare
from gpuiso.devfilter.insn import Insn
from gpuiso.devfilter.interpret import DEVICE_TYPE_NUMBERS
from gpuiso.devfilter.liveness import jump_targets, live_registers
from gpuiso.devfilter.machine import Branch, Join, Machine, Return, State, Stuck
from gpuiso.devfilter.spans import ALL_MAJORS, ALL_MINORS, Region, Span, Spans, intersect, union
from gpuiso.devfilter.values import Expression, HelperNames, Maps, Unknown, Value, Variable
from gpuiso.policy.rule import ALL_ACCESS, DeviceType

__all__ = ["Answers", "explore"]

_MAX_STEPS = 4_000_000
# Comparisons that cannot be inverted are tried number by number, up to this many.
_MAX_TRIED = 65_536


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
    """The answers of a program for every (type, access mask); ``max_steps`` bounds each of these."""
    live, targets = live_registers(program), jump_targets(program)
    answers: dict[tuple[DeviceType, int], Answers] = {}
    masks = tuple(masks)
    for device, number in DEVICE_TYPE_NUMBERS.items():
        for mask in masks:
            machine = Machine(
                program,
                mask << 16 | number,
                Variable("major"),
                Variable("minor"),
                maps=maps,
                helpers=helpers,
                steps_left=max_steps,
                stops=targets,
            )
            answers[device, mask] = _Walk(machine, live).walk()
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
        def holds(left: int, right: int) -> bool:
            return compare(event.operation, left, right, event.bits)

        state = event.state
        why = _undecidable(event.left, event.right)
        taken = region.copy() if why else _split(event.left, event.right, holds, event, region)
        if taken is None:
            why = "it compares device numbers in a way that is not followed"
            taken = region.copy()
        if why:
            self._doubt(why)
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
        why = _undecidable(value, 0)
        event = Branch(op.JNE, value, 0, 32, 0, 0, State.start())
        allowed = (
            None if why else _split(value, 0, lambda left, right: (left ^ right) & 0xFFFF_FFFF != 0, event, region)
        )
        if allowed is None:
            self._doubt(why or "it computes its answer in a way that is not followed")
            self._answers.stuck.add(region)
            return
        self._answers.allowed.add(allowed)
        self._answers.denied.add(region)

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


def _split(
    left: Value, right: Value, holds: Callable[[int, int], bool], event: Branch, region: Region
) -> Region | None:
    """Take out of ``region`` the devices for which ``left OP right`` holds; None if that is too much work."""
    solved = _solve(event.operation, left, right, event.bits)
    if solved is not None:
        name, spans = solved
        if name == "major":
            return region.take_majors(intersect(spans, (ALL_MAJORS,)))
        return region.take_minors(intersect(spans, (ALL_MINORS,)))
    names = _inputs(left) | _inputs(right)
    if names == {"major"}:
        majors = [n for low, high, _ in region.rows for n in range(low, high + 1)]
        return region.take_majors(union((n, n) for n in majors if holds(_value(left, n, 0), _value(right, n, 0))))
    if names == {"minor"}:
        held = union(span for _, _, minors in region.rows for span in minors)
        if sum(high - low + 1 for low, high in held) > _MAX_TRIED:
            return None
        minors = (n for low, high in held for n in range(low, high + 1))
        return region.take_minors(union((n, n) for n in minors if holds(_value(left, 0, n), _value(right, 0, n))))
    if region.size() > _MAX_TRIED:
        return None
    pairs = [
        (major, minor)
        for low, high, spans in region.rows
        for major in range(low, high + 1)
        for first, last in spans
        for minor in range(first, last + 1)
        if holds(_value(left, major, minor), _value(right, major, minor))
    ]
    return region.take_pairs(pairs)


def _inputs(value: Value) -> set[str]:
    if isinstance(value, Variable):
        return {value.name}
    if isinstance(value, Expression):
        return _inputs(value.left) | _inputs(value.right)
    return set()


def _value(value: Value, major: int, minor: int) -> int:
    if isinstance(value, int):
        return value
    if isinstance(value, Variable):
        return major if value.name == "major" else minor
    if isinstance(value, Expression):
        return arithmetic(
            value.operation,
            _value(value.left, major, minor),
            _value(value.right, major, minor),
            value.bits,
            value.off,
        )
    raise TypeError(f"{value!r} has no number")


_MIRRORED = {
    op.JEQ: op.JEQ,
    op.JNE: op.JNE,
    op.JGT: op.JLT,
    op.JLT: op.JGT,
    op.JGE: op.JLE,
    op.JLE: op.JGE,
    op.JSGT: op.JSLT,
    op.JSLT: op.JSGT,
    op.JSGE: op.JSLE,
    op.JSLE: op.JSGE,
}


def _solve(operation: int, left: Value, right: Value, bits: int) -> tuple[str, Spans] | None:
    """The input and its values for which ``left OP right`` holds, for ``input + constant OP constant``."""
    if isinstance(left, int):
        if operation not in _MIRRORED:
            return None
        operation, left, right = _MIRRORED[operation], right, left
    if not isinstance(right, int) or operation not in _MIRRORED:
        return None
    added, width = 0, bits
    if isinstance(left, Expression) and left.operation in (op.ADD, op.SUB) and isinstance(left.right, int):
        added = left.right if left.operation == op.ADD else -left.right
        width, left = min(bits, left.bits), left.left
    if not isinstance(left, Variable):
        return None
    # A sum of 32 bits is compared in 64 with a zero high half.
    sums = intersect(_solutions(operation, right, bits), ((0, (1 << width) - 1),))
    return left.name, _shift(sums, -added, width)


def _solutions(operation: int, constant: int, bits: int) -> Spans:
    """The unsigned numbers x of ``bits`` for which ``x OP constant`` holds."""
    top = (1 << bits) - 1
    constant &= top
    half = 1 << (bits - 1)
    if operation in (op.JSGT, op.JSGE, op.JSLT, op.JSLE):
        # Flipping the sign bit turns the signed order into the unsigned one.
        unsigned = {op.JSGT: op.JGT, op.JSGE: op.JGE, op.JSLT: op.JLT, op.JSLE: op.JLE}[operation]
        return _shift(_solutions(unsigned, constant ^ half, bits), half, bits)
    ranges: dict[int, list[Span]] = {
        op.JEQ: [(constant, constant)],
        op.JNE: [(0, constant - 1), (constant + 1, top)],
        op.JGT: [(constant + 1, top)],
        op.JGE: [(constant, top)],
        op.JLT: [(0, constant - 1)],
        op.JLE: [(0, constant)],
    }
    return union((low, high) for low, high in ranges[operation] if low <= high)


def _shift(spans: Spans, by: int, bits: int) -> Spans:
    """Add ``by`` to every number, modulo 2 to the power of ``bits``."""
    size = 1 << bits
    moved: list[Span] = []
    for low, high in spans:
        first = (low + by) % size
        last = first + (high - low)
        moved.append((first, min(last, size - 1)))
        if last >= size:
            moved.append((0, last - size))
    return union(moved)
