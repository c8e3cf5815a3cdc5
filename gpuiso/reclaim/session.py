# SPDX-License-Identifier: Apache-2.0
"""What a reclaim and a restore work with: a host, a driver, a gate, and where it is written down."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from gpuiso.apply.target import levels
from gpuiso.errors import GpuisoError, NotFound, TimedOut, Unknown
from gpuiso.govern.hold import HOLDS, hold_thawed
from gpuiso.gpu.model import Gpu, Inventory
from gpuiso.host.process import unified_cgroup
from gpuiso.host.protocol import Host
from gpuiso.reclaim.checkpoint import CheckpointHelper, HelperDied
from gpuiso.reclaim.cuda import ProcessState, describe_failure
from gpuiso.reclaim.ledger import Ledger
from gpuiso.reclaim.records import Record, Records
from gpuiso.reclaim.target import Target
from gpuiso.reclaim.usage import MemoryView

__all__ = ["Gate", "Memo", "Progress", "Session", "uninterrupted"]

Memo = Mapping[str, Any]
"""What a gate needs to open again, as JSON."""

_QUERY_DEADLINE = 10.0  # seconds
_MARGIN = 256 << 20  # bytes of GPU memory beside what the process had
_SLOWEST = 0.2e9  # bytes a second; measured: 1.7e9 and more


class Gate(Protocol):
    """Closes GPUs to a process that holds none at the moment, and opens them again."""

    def describe(self, target: Target, gpus: tuple[Gpu, ...]) -> list[str]:
        """What :meth:`close` will do, a line a step."""

    def close(self, target: Target, gpus: tuple[Gpu, ...], remember: Callable[[Memo], None]) -> Memo:
        """Closes. ``remember`` puts on disk what undoes a step before that step begins.

        :raises GpuisoError: it could not; what it did by then is undone.
        """

    def open(self, memo: Memo) -> list[str]:
        """Thaws, and puts everything back as it was, also after a crash half-way; returns what was done.

        :raises GpuisoError: something could not be put back.
        """

    def freeze(self, memo: Memo) -> None:
        """Stops the process's threads. :raises GpuisoError: it could not."""

    def kill(self, cgroup: str, members: frozenset[int]) -> bool:
        """SIGKILL to all of a cgroup in one step, if nobody but ``members`` is in it; whether it was done."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Bytes moved so far of ``total`` (None: not known), after ``seconds`` of one phase of one process."""

    phase: str
    target: Target
    moved: int
    total: int | None
    seconds: float


@dataclass
class Session:
    """``connect`` starts a helper that speaks to the driver; ``operator`` says on whose behalf (for the ledger).

    A host remembers files that do not change by themselves; ``fresh`` gives one that has read nothing yet, for the
    limits and states that do. ``watchers`` are processes that hold GPUs on gpuiso's own behalf. ``holds`` is the
    directory of the governor's locks.
    """

    host: Host
    inventory: Inventory
    memory: MemoryView
    connect: Callable[[], CheckpointHelper]
    gate: Gate
    records: Records
    ledger: Ledger
    operator: Mapping[str, Any]
    notify: Callable[[Progress], None] = lambda progress: None
    watchers: frozenset[int] = frozenset()
    fresh: Callable[[], Host] | None = None
    holds: str = HOLDS
    unwritten: str | None = field(default=None, init=False)
    _helper: CheckpointHelper | None = field(default=None, init=False)

    @property
    def helper(self) -> CheckpointHelper:
        """The helper, started when it is first needed."""
        if self._helper is None:
            self._helper = self.connect()
        return self._helper

    @property
    def own_pids(self) -> frozenset[int]:
        """Processes that hold GPUs on gpuiso's own behalf."""
        return self.watchers if self._helper is None else self.watchers | {self._helper.pid}

    def drop_helper(self) -> None:
        """Leaves a helper that hangs or died to itself; the next use starts another."""
        if self._helper is not None:
            self._helper.close()
            self._helper = None

    def close(self) -> None:
        if self._helper is not None:
            self._helper.close(patience=1.0)
            self._helper = None

    @contextmanager
    def thawed(self, target: Target) -> Iterator[None]:
        """While this lasts no governor freezes the process: the driver would wait for it to run.

        :raises TimedOut: a governor has it frozen, and does not thaw it.
        """
        with ExitStack() as held:
            try:
                cgroup = unified_cgroup(self.host, target.pid) or "/"
                for level in (level for level in levels(cgroup) if level != "/"):
                    held.enter_context(hold_thawed(level, self.holds))
            except (PermissionError, NotFound, Unknown):
                pass  # a user's own governor is nobody's but his; of one that ended nothing is frozen
            yield

    def short_of(self, need: Mapping[str, int | None]) -> str | None:
        """Which GPU has too little free memory for ``need`` (bytes by UUID), as a clause; None if none has.

        Looked at before every restore: one that finds too little memory is stuck for good (NVIDIA/cuda-checkpoint
        issue 44).

        :raises Unknown: NVML does not tell.
        """
        free = {gpu.uuid: gpu.total - gpu.used for gpu in self.memory()}
        for uuid, used in need.items():
            wanted = (used or 0) + _MARGIN
            if free.get(uuid, 0) < wanted:
                return f"GPU {uuid} has {free.get(uuid, 0) >> 20} MiB free, and {wanted >> 20} are needed"
        return None

    def bring_back(self, target: Target, record: Record) -> str | None:
        """Brings a process to RUNNING, whatever happened before; returns why that failed, None if it did not.

        A process that ended meanwhile is no failure: nothing is left of it.
        """
        footprint = record.footprint
        said = ""
        for _ in range(2):  # the helper may be the one that hangs or died; a fresh one may do
            if not target.alive:
                return None
            try:
                if self.state(target) == ProcessState.CHECKPOINTED and (short := self._short_of(record)) is not None:
                    return f"{short}: it stays CHECKPOINTED, its data whole"
                answer = self.helper.call(
                    "back", target.pid, deadline=patience(footprint) + 2 * _QUERY_DEADLINE, pidfd=target.pidfd
                )
            except (HelperDied, TimedOut) as error:
                said = error.message
                self.drop_helper()
                continue
            except GpuisoError:
                return None  # TargetEnded
            if answer.code == 0 and answer.value == ProcessState.RUNNING:
                return None
            if answer.code == 0:
                return "the driver calls its CUDA state FAILED, which nothing mends"
            return describe_failure("restore" if answer.value == ProcessState.CHECKPOINTED else "unlock", answer.code)
        return said

    def _short_of(self, record: Record) -> str | None:
        try:
            return self.short_of(record.memory)
        except Unknown:
            return None  # staying half-way for want of a number would be worse

    def state(self, target: Target) -> ProcessState | None:
        """The driver's word about a process, None if it gives none.

        :raises TimedOut, HelperDied, TargetEnded: as the helper does.
        """
        return self.helper.state(target.pid, deadline=_QUERY_DEADLINE, pidfd=target.pidfd)[1]

    def try_to_write_down(self, event: str, record: Record, result: str, **details: Any) -> None:
        """The same where things are being put right: what fails is kept in ``unwritten`` and stops nothing."""
        try:
            self.write_down(event, record, result, **details)
        except GpuisoError as error:
            self.unwritten = error.message

    def write_down(self, event: str, record: Record, result: str, **details: Any) -> None:
        """An entry in the ledger. :raises GpuisoError: it cannot be written."""
        about = {
            "pid": record.pid,
            "start_time": record.start_time,
            "comm": record.comm,
            "job": record.job,
            "gpus": list(record.gpus),
            "memory": record.memory,
            "result": result,
            "operator": dict(self.operator),
        }
        self.ledger.append(event, {**about, **details})


def patience(footprint: int | None) -> float:
    """Seconds after which a copy of so many bytes does not end any more."""
    return 120.0 + (footprint or 0) / _SLOWEST


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Holds back the signals of a terminal while something is put right; they arrive at the end."""
    held = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, held)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
