# SPDX-License-Identifier: Apache-2.0
"""What a reclaim would do to a process, rung by rung, and who else is on its GPUs. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gpuiso.errors import GpuisoError, Unknown
from gpuiso.gpu.model import Gpu
from gpuiso.reclaim.confine import gpus_of_tree
from gpuiso.reclaim.ladder import Rung, off_limits, rungs_up_to
from gpuiso.reclaim.preflight import Reason
from gpuiso.reclaim.reset import refusals, reset_command
from gpuiso.reclaim.selection import Candidate, sharers
from gpuiso.reclaim.session import Session
from gpuiso.reclaim.take import look
from gpuiso.reclaim.target import Target

__all__ = ["Forecast", "forecast"]


@dataclass(frozen=True)
class Forecast:
    """``reasons`` speak against a checkpoint; ``steps`` are what would be tried, in order."""

    target: Target
    gpus: tuple[str, ...]
    reasons: tuple[Reason, ...]
    steps: tuple[str, ...]
    sharers: tuple[Candidate, ...]
    not_examined: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        return {
            "pid": self.target.pid,
            "start_time": self.target.start_time,
            "comm": self.target.comm,
            "gpus": list(self.gpus),
            "reasons": [{"kind": reason.kind, "says": reason.says} for reason in self.reasons],
            "steps": list(self.steps),
            "shared_with": [
                {"pid": who.pid, "comm": who.comm, "user": who.user, "memory": who.memory} for who in self.sharers
            ],
            "not_examined": list(self.not_examined),
        }


def forecast(session: Session, target: Target, until: Rung, *, scope_only: bool, yes: bool) -> Forecast:
    """The forecast for one process. A driver that is missing is a reason, no failure."""
    if scope_only:
        gpus = gpus_of_tree(session, target)
        return _of(session, target, gpus, (), tuple(session.gate.describe(target, gpus)), ())
    try:
        case, reasons, unknown = look(session, target)
        gpus = case.gpus
    except Unknown:
        raise
    except GpuisoError as error:
        gpus, reasons, unknown = (), (Reason("driver", error.message),), ()
    steps = list(_checkpoint(session, target, gpus)) if not reasons else []
    further = rungs_up_to(until)[1:]
    why = off_limits(session, target.pid) if further else None
    if why is not None:
        steps.append(f"no signal: {why}")
        further = ()
    for rung in further:
        steps += _further(session, target, gpus, rung, yes=yes)
    return _of(session, target, gpus, reasons, tuple(steps), unknown)


def _of(
    session: Session,
    target: Target,
    gpus: tuple[Gpu, ...],
    reasons: tuple[Reason, ...],
    steps: tuple[str, ...],
    unknown: tuple[str, ...],
) -> Forecast:
    names = tuple(gpu.uuid or gpu.pci_address for gpu in gpus)
    hidden = {target.pid, *session.own_pids}
    others = tuple(
        who for who in sharers(session.host, session.inventory, session.memory, names) if who.pid not in hidden
    )
    return Forecast(target, names, reasons, steps, others, unknown)


def _checkpoint(session: Session, target: Target, gpus: tuple[Gpu, ...]) -> Iterator[str]:
    yield "lock: the driver lets submitted work end and holds back new work"
    yield "checkpoint: the driver copies GPU memory to host memory and closes every GPU node"
    yield "verify: no NVIDIA node is open or mapped, and NVML shows no memory of it"
    yield from session.gate.describe(target, gpus)


def _further(session: Session, target: Target, gpus: tuple[Gpu, ...], rung: Rung, *, yes: bool) -> Iterator[str]:
    if rung == "term":
        yield f"if that fails: SIGTERM to {target}"
    elif rung == "kill":
        yield f"if that fails: SIGKILL to {target} and all it started"
    else:
        for gpu in gpus:
            hidden = {target.pid, *session.own_pids}
            users = sharers(session.host, session.inventory, session.memory, (str(gpu.uuid),))
            why = refusals(session.host, gpu, [who for who in users if who.pid not in hidden], yes=yes)
            command = " ".join(reset_command(gpu))
            yield f"if that fails: {command}" + (f"; refused: {'; '.join(why)}" if why else "")
