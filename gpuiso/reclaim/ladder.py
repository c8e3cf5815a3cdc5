# SPDX-License-Identifier: Apache-2.0
"""The ladder: checkpoint, then SIGTERM, then SIGKILL, then a reset of the GPU; each rung only as far as was asked for.

The first rung loses nothing. Each further one is for what the one before could not do, and counts as done when the
memory is seen to be back, not when a call returned.
"""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from gpuiso.errors import GpuisoError, NotFound, NotPermitted, NotSupported, NotUndone, TimedOut, Unknown
from gpuiso.host.process import unified_cgroup
from gpuiso.host.process_tree import descendants, read_processes
from gpuiso.reclaim import reset as gpu_reset
from gpuiso.reclaim.records import Busy, Record
from gpuiso.reclaim.selection import Selection, select, sharers
from gpuiso.reclaim.session import Session
from gpuiso.reclaim.take import Interrupted, Options, Recorded, Taken, take
from gpuiso.reclaim.target import Target, TargetEnded
from gpuiso.reclaim.usage import Usage, memory_of, usage_of

__all__ = ["RUNGS", "Climbed", "Rung", "Timing", "climb", "off_limits", "rungs_up_to"]

Rung = Literal["checkpoint", "term", "kill", "reset"]
RUNGS: tuple[Rung, ...] = get_args(Rung)

_BACK_LIMIT = 10.0  # seconds until NVML shows the memory of an ended process as free
_PAUSE = 0.05


@dataclass(frozen=True)
class Timing:
    """Seconds each rung is given."""

    term: float = 30.0
    kill: float = 60.0
    reset: float = 120.0


@dataclass
class Climbed:
    """One process: ``rung`` is the one that did it, ``failed`` what the rungs before it said."""

    record: Record
    rung: Rung
    failed: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    not_examined: tuple[str, ...] = ()


def rungs_up_to(until: Rung) -> tuple[Rung, ...]:
    """The rungs that may be tried, in order."""
    return RUNGS[: RUNGS.index(until) + 1]


def climb(
    session: Session,
    targets: Sequence[Target],
    until: Rung,
    options: Options,
    timing: Timing,
    *,
    yes: bool = False,
    run: gpu_reset.Run = gpu_reset.run,
) -> list[Climbed]:
    """Takes the GPUs of processes, by the lowest rung that can.

    :raises GpuisoError: as :func:`gpuiso.reclaim.take.take` where ``until`` is checkpoint.
    :raises TimedOut, NotPermitted: even the last rung did not free a GPU; processes that ended stay ended.
    """
    if until == "checkpoint":
        return [_climbed(taken) for taken in take(session, targets, options)]
    done: list[Climbed] = []
    left: list[tuple[Target, str]] = []
    try:
        return [_climbed(taken) for taken in take(session, targets, options)]
    except GpuisoError as error:
        _check_further(error)
        if len(targets) == 1:
            left.append((targets[0], error.message))
    for target in targets if not left else ():
        try:
            done += [_climbed(taken) for taken in take(session, [target], options)]
        except GpuisoError as error:
            _check_further(error)
            left.append((target, error.message))
    for target, why in left:
        if (limit := off_limits(session, target.pid)) is not None:
            raise NotSupported(f"{why}; and it gets no signal: {limit}")
        done.append(_Ladder(session, target, until, timing, why, yes=yes, run=run).run())
    return done


def _check_further(error: GpuisoError) -> None:
    """Raises an error that no further rung is for: stopped by somebody, not permitted, ended, in gpuiso's care."""
    stopped = isinstance(error, (Busy, Interrupted, NotPermitted, Recorded, TargetEnded))
    if stopped or isinstance(error.__cause__, KeyboardInterrupt):
        raise error


def off_limits(session: Session, pid: int) -> str | None:
    """Why a process gets no signal whatever was asked for, as a clause; None if it may."""
    if pid == 1:
        return "it is the init process"
    if any(process.pid == os.getpid() for process in descendants(read_processes(), pid)):
        return "it started this gpuiso"
    (who,) = select(session.host, session.inventory, session.memory, Selection(pids=(pid,)))
    return None if who.gpus or who.memory else "it holds nothing of a GPU"


def _climbed(taken: Taken) -> Climbed:
    return Climbed(taken.record, "checkpoint", {}, taken.seconds, taken.not_examined)


class _Ladder:
    """The rungs after the first, for one process."""

    def __init__(
        self,
        session: Session,
        target: Target,
        until: Rung,
        timing: Timing,
        why: str,
        *,
        yes: bool,
        run: gpu_reset.Run,
    ) -> None:
        self.session = session
        self.target = target
        self.timing = timing
        self.yes = yes
        self.command = run
        self.rungs = rungs_up_to(until)[1:]
        self.usage = self._usage()
        self.gpus = self.usage.gpus(session.inventory)
        self.record = self._record()
        self.climbed = Climbed(self.record, "checkpoint", {"checkpoint": why})

    def _usage(self) -> Usage:
        try:
            return usage_of(self.session.host, self.target.pid, self.session.memory)
        except NotFound:
            return Usage({}, frozenset(), {})

    def _record(self) -> Record:
        known = self.session.records.find(self.target.pid, self.target.start_time)
        if known is not None:
            return known
        return Record(
            self.target.pid,
            self.target.start_time,
            self.target.comm,
            uuid.uuid4().hex[:12],
            "reclaiming",
            time.time(),
            tuple(str(gpu.uuid) for gpu in self.gpus),
            dict(self.usage.memory or {}),
        )

    def run(self) -> Climbed:
        self.session.ledger.prepare()
        for rung in self.rungs:
            started = time.monotonic()
            self.session.write_down(rung, self.record, "begun", why=self.climbed.failed)
            try:
                getattr(self, f"_{rung}")()
                self._memory_is_back()
            except GpuisoError as error:
                self.climbed.failed[rung] = error.message
                self.session.write_down(rung, self.record, "failed", why=error.message)
                continue
            self.climbed.rung = rung
            self.climbed.seconds[rung] = time.monotonic() - started
            self.session.write_down(rung, self.record, "freed", seconds=self.climbed.seconds)
            self._forget()
            return self.climbed
        said = "; ".join(f"{rung}: {why}" for rung, why in self.climbed.failed.items())
        if self.target.alive:
            raise TimedOut(f"the GPU of {self.target} is not free: {said}")
        raise NotUndone(f"{self.target} ended, and yet its GPU is not free: {said}", hint="gpuiso doctor looks why")

    def _forget(self) -> None:
        known = self.session.records.find(self.target.pid, self.target.start_time)
        if known is not None:
            if known.gate is not None:
                self.session.gate.open(known.gate)
            self.session.records.remove(known)

    def _term(self) -> None:
        self.target.send(signal.SIGTERM)
        if not self.target.wait(self.timing.term):
            raise TimedOut(f"it did not end within {self.timing.term:g} s of SIGTERM")

    def _kill(self) -> None:
        """The process and all it started: what it forked may hold the same memory."""
        limit = time.monotonic() + self.timing.kill
        members = frozenset(process.pid for process in descendants(read_processes(), self.target.pid))
        self._kill_cgroup(members)
        self.target.send(signal.SIGKILL)
        for pid in sorted(members - {self.target.pid}):
            try:
                with Target.open(self.session.host, pid) as member:
                    member.send(signal.SIGKILL)
            except NotFound:
                continue
        if not self.target.wait(max(0.0, limit - time.monotonic())):
            raise TimedOut(f"it did not end within {self.timing.kill:g} s of SIGKILL: the driver holds it")

    def _kill_cgroup(self, members: frozenset[int]) -> None:
        """cgroup.kill also reaches what is forked at this moment; used where nobody else is in the cgroup."""
        try:
            cgroup = unified_cgroup(self.session.host, self.target.pid)
        except NotFound:
            return
        if cgroup not in (None, "/"):
            self.session.gate.kill(str(cgroup), members)

    def _reset(self) -> None:
        for gpu in self.gpus:
            session = self.session
            users = sharers(session.host, session.inventory, session.memory, (str(gpu.uuid),))
            hidden = {self.target.pid, *session.own_pids}
            others = [user for user in users if user.pid not in hidden]
            why = gpu_reset.refusals(session.host, gpu, others, yes=self.yes)
            if why:
                raise NotPermitted(f"GPU {gpu.uuid} is not reset: {'; '.join(why)}")
        self.session.close()  # the helper has the nodes open
        for gpu in self.gpus:
            gpu_reset.reset(gpu, self.command, self.timing.reset)

    def _memory_is_back(self) -> None:
        limit = time.monotonic() + _BACK_LIMIT
        while True:
            try:
                held = memory_of((self.target.pid,), self.session.memory())
            except Unknown as error:
                self.climbed.not_examined = (error.message,)
                held = {}
            if not held and not self.target.alive:
                return
            if time.monotonic() > limit:
                what = ", ".join(held) or "the process itself"
                raise TimedOut(f"{what} is still held {_BACK_LIMIT:g} s later")
            time.sleep(_PAUSE)
