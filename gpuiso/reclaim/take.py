# SPDX-License-Identifier: Apache-2.0
"""Take the GPUs of processes: lock all, checkpoint all, look from outside, close the gate; or walk all of it back."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace

from gpuiso.errors import FailedAndUndone, GpuisoError, NotSupported, NotUndone, TimedOut, Unknown
from gpuiso.reclaim.checkpoint import HelperDied
from gpuiso.reclaim.drive import drive, words
from gpuiso.reclaim.huge_pages import HugePages
from gpuiso.reclaim.preflight import Case, Reason, examine, not_running, refuse
from gpuiso.reclaim.records import Record
from gpuiso.reclaim.session import Memo, Session, uninterrupted
from gpuiso.reclaim.target import Target, TargetEnded
from gpuiso.reclaim.usage import Usage, usage_of, used_by_gpu

__all__ = ["Interrupted", "Options", "Recorded", "Taken", "check_unrecorded", "look", "take", "undo"]

_VERIFY_LIMIT = 5.0  # seconds the driver may take until NVML and /proc show what it did
_VERIFY_PAUSE = 0.05
_NOISE = 32 << 20  # bytes by which a GPU's used memory moves by itself


class Interrupted(FailedAndUndone):
    """Somebody stopped it, and all runs as before."""

    code = "interrupted"


class Recorded(NotSupported):
    """gpuiso has the process in its care already: it is reclaimed, in a scope, or half-way."""

    code = "recorded"


@dataclass(frozen=True)
class Options:
    """``lock_timeout`` is how many seconds work on the GPU may go on; ``freeze`` stops the process afterwards.

    ``huge_pages`` makes the kernel back the copy with huge pages, which is faster; None leaves it as it is.
    """

    lock_timeout: float = 10.0
    freeze: bool = False
    huge_pages: HugePages | None = None


@dataclass
class Taken:
    """One process: ``seconds`` by phase (those of the driver's own calls under their names), ``usage`` before."""

    record: Record
    usage: Usage
    seconds: dict[str, float] = field(default_factory=dict)
    not_examined: tuple[str, ...] = ()


def look(session: Session, target: Target) -> tuple[Case, tuple[Reason, ...], tuple[str, ...]]:
    """What a process has, and every reason not to checkpoint it. Changes nothing."""
    with session.thawed(target):
        return _look(session, target)


def _look(session: Session, target: Target) -> tuple[Case, tuple[Reason, ...], tuple[str, ...]]:
    host = session.host if session.fresh is None else session.fresh()
    try:
        usage = usage_of(host, target.pid, session.memory)
    except Unknown:
        if target.pid != 1:
            raise
        usage = Usage({}, frozenset(), None)  # not even root may look into every init process
    state = None
    why = None
    if (reason := not_running(host, target.pid)) is not None:
        why = f"the driver was not asked about it: {reason.says}"  # it would not answer
    else:
        try:
            state = session.helper.state(target.pid, pidfd=target.pidfd)
        except HelperDied as error:
            session.drop_helper()
            why = error.message
        except (NotSupported, TimedOut) as error:
            why = error.message
    case = Case(host, session.inventory, target, usage, state, why)
    return (case, *examine(case))


def take(session: Session, targets: Sequence[Target], options: Options) -> list[Taken]:
    """Reclaims processes, all or none.

    :raises NotSupported, NotPermitted, NotFound: a process cannot be checkpointed; nothing was done. All reasons.
    :raises FailedAndUndone: something failed; every process is RUNNING again (or ended by itself, which it says).
    :raises NotUndone: a process could not be brought back; ``gpuiso recover`` tries again.
    """
    with ExitStack() as held:
        for target in targets:
            held.enter_context(session.records.lock(target.pid, target.start_time))
            held.enter_context(session.thawed(target))
        session.ledger.prepare()
        cases = []
        for target in targets:
            check_unrecorded(session, target)
            case, reasons, unknown = look(session, target)
            if reasons:
                raise refuse(target, reasons)
            cases.append((case, unknown))
        return _Take(session, options, cases).run()


def check_unrecorded(session: Session, target: Target) -> None:
    """:raises Recorded: there is a record whose gate this one would forget."""
    known = session.records.find(target.pid, target.start_time)
    if known is None or (not known.finished and known.gate is None):
        return
    if known.finished:
        where = "in a scope of gpuiso's" if known.phase == "scope" else "reclaimed"
        raise Recorded(f"{target} is {where} already", hint=f"gpuiso restore --pid {target.pid} comes first")
    raise Recorded(f"{target} was left half-way ({known.phase})", hint="gpuiso recover comes first")


class _Take:
    def __init__(self, session: Session, options: Options, cases: Sequence[tuple[Case, tuple[str, ...]]]) -> None:
        self.session = session
        self.options = options
        self.cases = [case for case, _ in cases]
        job = uuid.uuid4().hex[:12]
        self.taken = [Taken(self._record(case, job), case.usage, not_examined=unknown) for case, unknown in cases]
        self.begun: list[int] = []
        self.used: dict[str, int] = {}

    @staticmethod
    def _record(case: Case, job: str) -> Record:
        return Record(
            pid=case.target.pid,
            start_time=case.target.start_time,
            comm=case.target.comm,
            job=job,
            phase="reclaiming",
            time=time.time(),
            gpus=tuple(str(gpu.uuid) for gpu in case.gpus),
            memory=dict(case.usage.memory or {}),
        )

    def run(self) -> list[Taken]:
        started = time.monotonic()
        try:
            for place, one in enumerate(self.taken):
                self.begun.append(place)
                self.session.records.write(one.record)
                self.session.write_down("reclaim", one.record, "begun")
            huge = self.options.huge_pages
            with nullcontext() if huge is None else huge.always():
                for case, one in zip(self.cases, self.taken, strict=True):
                    self._lock(case, one)
                for case, one in zip(self.cases, self.taken, strict=True):
                    self._checkpoint(case, one)
                    self._verify(case, one)
            for case, one in zip(self.cases, self.taken, strict=True):
                self._close(case, one)
                case.target.require()
            with uninterrupted():
                self._finish(time.monotonic() - started)
        except BaseException as error:
            with uninterrupted():
                self._walk_back(error)
            raise
        return self.taken

    def _lock(self, case: Case, one: Taken) -> None:
        total = case.usage.footprint()
        wait = self.options.lock_timeout
        one.seconds["lock"] = drive(self.session, case.target, "lock", total=total, timeout=wait)

    def _checkpoint(self, case: Case, one: Taken) -> None:
        total = case.usage.footprint()
        self.used = used_by_gpu(self.session.memory)
        one.seconds["checkpoint"] = drive(self.session, case.target, "checkpoint", total=total)

    def _verify(self, case: Case, one: Taken) -> None:
        started = time.monotonic()
        while True:
            case.target.require()  # of one that ended nothing is left either
            usage = usage_of(self.session.host, case.target.pid, self.session.memory)
            left = usage.left()
            if not left:
                break
            if time.monotonic() - started > _VERIFY_LIMIT:
                raise GpuisoError(f"{case.target} still holds {', '.join(left)} after its checkpoint")
            time.sleep(_VERIFY_PAUSE)
        if usage.memory is None:
            one.not_examined = (*one.not_examined, usage.why or "NVML")
        if not one.record.memory:
            one.record = replace(one.record, memory=self._freed())
        one.seconds["verify"] = time.monotonic() - started

    def _freed(self) -> dict[str, int | None]:
        """What the last checkpoint gave back, where NVML does not list the process: the restore must find as much."""
        now = used_by_gpu(self.session.memory)
        return {uuid: used - now[uuid] for uuid, used in self.used.items() if used - now.get(uuid, used) > _NOISE}

    def _close(self, case: Case, one: Taken) -> None:
        # From here on the helper must not undo: the driver would find the GPU closed.
        self.session.helper.call("keep", case.target.pid, deadline=10.0)
        started = time.monotonic()

        def remember(memo: Memo) -> None:
            one.record = replace(one.record, gate=dict(memo))
            self.session.records.write(one.record)

        memo = self.session.gate.close(case.target, case.gpus, remember)
        one.record = replace(one.record, gate=dict(memo))
        if self.options.freeze:
            self.session.gate.freeze(memo)
            one.record = replace(one.record, frozen=True)
        one.seconds["close"] = time.monotonic() - started

    def _finish(self, seconds: float) -> None:
        for one in self.taken:
            one.seconds["whole"] = seconds
            one.record = one.record.with_phase("reclaimed", time=time.time())
            self.session.records.write(one.record)
        for one in self.taken:
            self.session.write_down("reclaim", one.record, "reclaimed", seconds=one.seconds)

    def _walk_back(self, error: BaseException) -> None:
        """Undoes what was begun, and raises what the caller is to know."""
        left: list[str] = []
        ended: list[str] = []
        if isinstance(error, GpuisoError) and not isinstance(error, TargetEnded) and error.exit_code == 6:
            self.session.drop_helper()  # it is in a call that may never return
        for place in reversed(self.begun):
            case, one = self.cases[place], self.taken[place]
            failure = undo(self.session, case.target, one.record)
            if failure is not None:
                left.append(f"{case.target}: {failure}")
                self.session.try_to_write_down("reclaim", one.record, "failed", why=failure)
                continue
            if not case.target.alive:
                ended.append(str(case.target))
            self.session.records.remove(one.record)
            result = "undone" if case.target.alive else "ended"
            self.session.try_to_write_down("reclaim", one.record, result, why=words(error))
        if left:
            raise NotUndone(
                f"{self._said(error)}; and could not be brought back: {'; '.join(left)}",
                hint="gpuiso recover tries again; the processes keep their data until then",
            ) from error
        if isinstance(error, (GpuisoError, OSError, KeyboardInterrupt)):
            raise _undone(error, self._said(error), ended, len(self.begun)) from error

    def _said(self, error: BaseException) -> str:
        unwritten = self.session.unwritten
        return words(error) if unwritten in (None, words(error)) else f"{words(error)}; {unwritten}"


def _undone(error: BaseException, said: str, ended: Sequence[str], begun: int) -> GpuisoError:
    if ended and len(ended) == begun:
        return TargetEnded(f"{', '.join(ended)} ended meanwhile, and its GPU memory with it")
    others = f"; {', '.join(ended)} ended meanwhile" if ended else ""
    running = "it is RUNNING again" if begun == 1 else "all others are RUNNING again" if ended else "all run again"
    hint = error.hint if isinstance(error, GpuisoError) else None
    kind = Interrupted if isinstance(error, KeyboardInterrupt) else FailedAndUndone
    return kind(f"{said}{others}; {running}", hint=hint)


def undo(session: Session, target: Target, record: Record) -> str | None:
    """Brings a process that was begun with back to RUNNING at its old place; returns why that failed."""
    try:
        if record.gate is not None:
            session.gate.open(record.gate)
        with session.thawed(target):
            return session.bring_back(target, record)
    except GpuisoError as error:
        return error.message
