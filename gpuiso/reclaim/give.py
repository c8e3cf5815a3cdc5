# SPDX-License-Identifier: Apache-2.0
"""Give the GPUs back: gate open, memory there, restore all, unlock all; or everything stays reclaimed."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from gpuiso.errors import FailedAndUndone, GpuisoError, NotFound, NotSupported, NotUndone, Unknown
from gpuiso.gpu.model import Gpu
from gpuiso.reclaim.checkpoint import HelperDied
from gpuiso.reclaim.cuda import ProcessState
from gpuiso.reclaim.drive import drive, words
from gpuiso.reclaim.records import Record
from gpuiso.reclaim.session import Memo, Session, patience, uninterrupted
from gpuiso.reclaim.target import Target, TargetEnded
from gpuiso.reclaim.usage import usage_of

__all__ = ["Given", "close_again", "forget", "give", "moved_gpus"]

_VERIFY_LIMIT = 5.0


@dataclass
class Given:
    """One process that runs again. ``seconds`` by phase, ``memory`` in bytes by GPU UUID (None: NVML does not tell)."""

    record: Record
    seconds: dict[str, float] = field(default_factory=dict)
    memory: dict[str, int | None] | None = None


def give(session: Session, records: Sequence[Record], moves: Mapping[str, str] | None = None) -> list[Given]:
    """Restores processes, all or none. ``moves`` are new GPU UUIDs by old ones.

    :raises NotFound: a process ended while it was reclaimed; its record is removed.
    :raises NotSupported, GpuisoError: the target GPUs cannot take it; nothing was done.
    :raises FailedAndUndone: a restore failed; all are reclaimed as before, with their data.
    :raises NotUndone: a process is neither restored nor reclaimed.
    """
    with ExitStack() as held:
        targets = []
        for record in records:
            held.enter_context(session.records.lock(record.pid, record.start_time))
            targets.append(held.enter_context(_open(session, record)))
        session.ledger.prepare()
        return _Give(session, list(zip(targets, records, strict=True)), dict(moves or {})).run()


def _open(session: Session, record: Record) -> Target:
    try:
        return Target.open(session.host, record.pid, start=record.start_time)
    except NotFound as error:
        forget(session, record)
        raise NotFound(f"process {record.pid} ({record.comm}) ended while it was reclaimed") from error


def forget(session: Session, record: Record) -> list[str]:
    """Clears up after a process that ended while it was reclaimed."""
    done = [] if record.gate is None else session.gate.open(record.gate)
    session.write_down("restore", record, "ended")
    session.records.remove(record)
    return done


def moved_gpus(record: Record, gpus: Sequence[str]) -> dict[str, str]:
    """``--gpu UUID`` and ``--gpu OLD=NEW`` as a map. :raises NotSupported: what moves where is not clear."""
    moves: dict[str, str] = {}
    for text in gpus:
        old, separator, new = text.partition("=")
        if not separator:
            if len(record.gpus) != 1:
                raise NotSupported(
                    f"process {record.pid} used {len(record.gpus)} GPUs", hint="--gpu OLD=NEW says which of them moves"
                )
            old, new = record.gpus[0], text
        moves[old] = new
    return {old: new for old, new in moves.items() if old != new}


class _Give:
    def __init__(self, session: Session, held: Sequence[tuple[Target, Record]], moves: dict[str, str]) -> None:
        self.session = session
        self.held = held
        self.moves = moves
        self.given = [Given(record) for _, record in held]
        self.begun: list[int] = []

    def run(self) -> list[Given]:
        self._check()
        started = time.monotonic()
        with ExitStack() as thawed:
            try:
                for place, (target, _) in enumerate(self.held):
                    self.begun.append(place)
                    self._open_gate(target, self.given[place])
                    thawed.enter_context(self.session.thawed(target))
                self._drive()
            except BaseException as error:
                with uninterrupted():
                    self._settle(error)
                raise
        with uninterrupted():
            for one in self.given:
                one.seconds["whole"] = time.monotonic() - started
                self._finish(one)
        return self.given

    def _drive(self) -> None:
        for target, _ in self.held:
            self._check_state(target)
        pairs = [self._pairs(target) for target, _ in self.held]
        for place, (target, record) in enumerate(self.held):
            seconds = drive(self.session, target, "restore", total=record.footprint, pairs=pairs[place])
            self.given[place].seconds["restore"] = seconds
        for place, (target, _) in enumerate(self.held):
            self.given[place].seconds["unlock"] = drive(self.session, target, "unlock", total=None)
        for place, (target, _) in enumerate(self.held):
            self._verify(target, self.given[place])

    def _finish(self, one: Given) -> None:
        self.session.write_down("restore", one.record, "restored", seconds=one.seconds, moves=self.moves)
        self.session.records.remove(one.record)

    # Before anything is done

    def _check(self) -> None:
        known = {str(gpu.uuid): gpu for gpu in self.session.inventory.of("nvidia")}
        for new in self.moves.values():
            if new not in known:
                raise NotFound(f"no GPU {new} on {self.session.host.name}", hint=f"there are {', '.join(known)}")
        if self.moves and not self.session.helper.moves_gpus:
            raise NotSupported("this driver restores onto the same GPUs only: moving needs R580 or newer")
        for target, record in self.held:
            for old in self.moves:
                if old not in record.gpus:
                    raise NotFound(f"{target} did not use GPU {old}", hint=f"it used {', '.join(record.gpus)}")
        self._check_memory()

    def _check_memory(self) -> None:
        need: dict[str, int | None] = {}
        for _, record in self.held:
            for uuid, used in record.memory.items():
                place = self.moves.get(uuid, uuid)
                need[place] = (need.get(place) or 0) + (used or 0)
        try:
            short = self.session.short_of(need)
        except Unknown as error:
            raise Unknown("free GPU memory", f"{error.message}; a restore into too little cannot be undone") from error
        if short is not None:
            raise GpuisoError(short, hint="nothing was done; --gpu UUID restores onto another GPU")

    # On the way

    def _open_gate(self, target: Target, one: Given) -> None:
        started = time.monotonic()
        one.record = one.record.with_phase("restoring")
        self.session.records.write(one.record)
        self.session.write_down("restore", one.record, "begun", moves=self.moves)
        if one.record.gate is not None:
            self.session.gate.open(one.record.gate)
            one.record = replace(one.record, gate=None)
            self.session.records.write(one.record)
        one.seconds["open"] = time.monotonic() - started

    def _check_state(self, target: Target) -> None:
        """Only now: until its gate was opened the process may have been frozen, and the driver waits for such."""
        state = self.session.state(target)
        if state != ProcessState.CHECKPOINTED:
            word = "unknown" if state is None else state.name
            raise GpuisoError(f"{target} was not checkpointed any more: its CUDA state was {word}")

    def _pairs(self, target: Target) -> tuple[tuple[str, str], ...]:
        """Every GPU that the driver shows the process, old and new; the other end of a move takes its place."""
        if not self.moves:
            return ()
        shown = [gpu for gpu in self.session.inventory.of("nvidia") if self._may_open(target, gpu)]
        uuids = {str(gpu.uuid) for gpu in shown}
        for uuid in (*self.moves, *self.moves.values()):
            if uuid not in uuids:
                raise GpuisoError(
                    f"{target} may not open GPU {uuid}, and a move needs all its GPUs open",
                    hint="gpuiso explain says which rule denies it",
                )
        back = {new: old for old, new in self.moves.items() if new not in self.moves}
        whole = {**back, **self.moves}
        return tuple((_plain(uuid), _plain(whole.get(uuid, uuid))) for uuid in (str(gpu.uuid) for gpu in shown))

    def _may_open(self, target: Target, gpu: Gpu) -> bool:
        return gpu.node is not None and self.session.host.probe(target.pid, gpu.node.path) is None

    def _verify(self, target: Target, one: Given) -> None:
        """That the process holds its memory again where it should, and runs."""
        started = time.monotonic()
        expected = {self.moves.get(uuid, uuid) for uuid in one.record.memory}
        while True:
            target.require()
            state = self.session.state(target)
            usage = usage_of(self.session.host, target.pid, self.session.memory)
            one.memory = usage.memory
            there = expected <= usage.memory.keys() if usage.memory else bool(usage.nodes)
            if state == ProcessState.RUNNING and there:
                break
            if time.monotonic() - started > _VERIFY_LIMIT:
                raise GpuisoError(f"{target} was restored, and yet holds no memory on {', '.join(sorted(expected))}")
            time.sleep(0.05)
        one.seconds["verify"] = time.monotonic() - started

    # When it failed

    def _settle(self, error: BaseException) -> None:
        """Makes each process either reclaimed as before or RUNNING, and raises what the caller is to know."""
        if isinstance(error, HelperDied) or getattr(error, "exit_code", 0) == 6:
            self.session.drop_helper()
        states = [self._state(self.held[place][0]) for place in self.begun]
        together = ProcessState.CHECKPOINTED in states
        reclaimed, running, ended, left = [], [], [], []
        for place, state in zip(self.begun, states, strict=True):
            target, one = self.held[place][0], self.given[place]
            if not target.alive:
                ended.append(str(target))
                forget(self.session, one.record)
                continue
            failure = self._settle_one(target, one, state, together=together)
            if failure is not None:
                left.append(f"{target}: {failure}")
                self.session.try_to_write_down("restore", one.record, "failed", why=failure)
            elif one.record.phase == "reclaimed":
                reclaimed.append(str(target))
            else:
                running.append(str(target))
        said = words(error)
        if self.session.unwritten not in (None, said):
            said = f"{said}; {self.session.unwritten}"
        if left:
            raise NotUndone(f"{said}; and then: {'; '.join(left)}", hint="gpuiso recover tries again") from error
        if isinstance(error, (GpuisoError, OSError, KeyboardInterrupt)):
            raise _outcome(error, said, reclaimed, running, ended) from error

    def _state(self, target: Target) -> ProcessState | None:
        for _ in range(2):
            try:
                return self.session.state(target)
            except TargetEnded:
                return None
            except GpuisoError:
                self.session.drop_helper()
        return None

    def _settle_one(self, target: Target, one: Given, state: ProcessState | None, *, together: bool) -> str | None:
        """``together``: another process of the same restore stays reclaimed, so this one should too."""
        if state == ProcessState.LOCKED and together:
            answer = self.session.helper.call("checkpoint", target.pid, deadline=patience(one.record.footprint))
            state = ProcessState.CHECKPOINTED if answer.code == 0 else state
        if state == ProcessState.CHECKPOINTED:
            return self._close_again(target, one)
        failure = self.session.bring_back(target, one.record)
        if failure is None:
            self._finish(one)
        return failure

    def _close_again(self, target: Target, one: Given) -> str | None:
        try:
            close_again(self.session, target, one.record)
        except GpuisoError as error:
            return f"it is CHECKPOINTED, but its gate could not be closed again: {error.message}"
        one.record = self.session.records.find(target.pid, target.start_time) or one.record
        self.session.try_to_write_down("restore", one.record, "reclaimed")
        return None


def close_again(session: Session, target: Target, record: Record) -> None:
    """Makes a checkpointed process reclaimed: gate closed, frozen if it was. :raises GpuisoError: it could not."""
    session.helper.call("keep", target.pid, deadline=10.0)
    gpus = tuple(gpu for gpu in session.inventory.of("nvidia") if gpu.uuid in record.gpus)
    current = record

    def remember(memo: Memo) -> None:
        nonlocal current
        current = replace(current, gate=dict(memo))
        session.records.write(current)

    if record.gate is None:
        remember(session.gate.close(target, gpus, remember))
    if record.frozen and current.gate is not None:
        session.gate.freeze(current.gate)
    session.records.write(current.with_phase("reclaimed"))


def _outcome(
    error: BaseException, said: str, reclaimed: list[str], running: list[str], ended: list[str]
) -> GpuisoError:
    parts = []
    if reclaimed:
        parts.append(f"{', '.join(reclaimed)} stays reclaimed, its data whole")
    if running:
        parts.append(f"{', '.join(running)} runs")
    if ended:
        if not reclaimed and not running:
            return TargetEnded(f"{', '.join(ended)} ended meanwhile")
        parts.append(f"{', '.join(ended)} ended meanwhile")
    hint = error.hint if isinstance(error, GpuisoError) else None
    return FailedAndUndone("; ".join([said, *parts]), hint=hint)


def _plain(uuid: str) -> str:
    return uuid.removeprefix("GPU-").replace("-", "")
