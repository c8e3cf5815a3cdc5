# SPDX-License-Identifier: Apache-2.0
"""Finish or undo what a gpuiso that was killed left between RUNNING and reclaimed."""

from __future__ import annotations

from gpuiso.errors import GpuisoError, NotFound, NotUndone
from gpuiso.reclaim.confine import release
from gpuiso.reclaim.cuda import ProcessState
from gpuiso.reclaim.give import close_again, forget
from gpuiso.reclaim.records import Busy, Record
from gpuiso.reclaim.session import Session
from gpuiso.reclaim.take import undo
from gpuiso.reclaim.target import Target

__all__ = ["recover"]


def recover(session: Session) -> list[str]:
    """Puts every record right; returns what was done, in plain words. May be called at any time, any number of times.

    What another gpuiso works on is left to it. A finished record whose process ended is removed.

    :raises NotUndone: something could not be put right; its record stays.
    """
    done: list[str] = []
    left: list[str] = []
    for record in session.records.all():
        try:
            with session.records.lock(record.pid, record.start_time):
                now = session.records.find(record.pid, record.start_time)
                if now is not None:
                    done += _recover(session, now)
        except Busy:
            continue
        except GpuisoError as error:
            left.append(error.message)
    if left:
        raise NotUndone(f"could not be put right: {'; '.join(left)}")
    return done


def _recover(session: Session, record: Record) -> list[str]:
    try:
        target = Target.open(session.host, record.pid, start=record.start_time)
    except NotFound:
        said = forget(session, record)
        return [f"cleared up after process {record.pid} ({record.comm}), which ended while it was reclaimed", *said]
    with target:
        if record.finished:
            return []
        if record.phase == "confining":
            return [f"{target} is where it was: its move had been interrupted", *release(session, record, "undone")]
        if record.phase == "restoring":
            return _go_on(session, target, record)
        failure = undo(session, target, record)
        if failure is not None:
            raise NotUndone(f"{target}: {failure}")
        session.records.remove(record)
        session.write_down("recover", record, "undone")
        return [f"{target} runs again: its reclaim had been interrupted"]


def _go_on(session: Session, target: Target, record: Record) -> list[str]:
    failure = undo(session, target, record)
    if failure is None:
        session.records.remove(record)
        session.write_down("recover", record, "restored")
        return [f"{target} runs again: its restore had been interrupted"]
    if session.state(target) != ProcessState.CHECKPOINTED:
        raise NotUndone(f"{target}: {failure}")
    close_again(session, target, record.with_phase("restoring", gate=None))
    session.write_down("recover", record, "reclaimed", why=failure)
    return [f"{target} stays reclaimed, its data whole: {failure}"]
