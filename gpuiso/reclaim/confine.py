# SPDX-License-Identifier: Apache-2.0
"""The plain form: a process tree goes into a scope that denies GPUs. New opens are gated, what is open stays."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from gpuiso.errors import FailedAndUndone, GpuisoError, NotSupported
from gpuiso.gpu.holders import GPU_NODES
from gpuiso.gpu.model import Gpu
from gpuiso.host.process import device_descriptors
from gpuiso.host.process_tree import descendants, read_processes
from gpuiso.reclaim.records import Record
from gpuiso.reclaim.session import Memo, Session, uninterrupted
from gpuiso.reclaim.take import check_unrecorded
from gpuiso.reclaim.target import Target

__all__ = ["confine", "gpus_of_tree", "put_back", "release"]


def gpus_of_tree(session: Session, target: Target) -> tuple[Gpu, ...]:
    """The GPUs of any vendor that a process or something it started has open; all of the host's if it has none."""
    nodes: set[str] = set()
    for process in descendants(read_processes(), target.pid):
        try:
            nodes |= device_descriptors(session.host, process.pid, GPU_NODES).keys()
        except GpuisoError:
            continue  # it ended, or may not be looked at
    found = tuple(gpu for gpu in session.inventory.gpus if nodes & {node.path for node in gpu.nodes})
    found = found or session.inventory.gpus
    if not any(node.major is not None for gpu in found for node in gpu.nodes):
        raise NotSupported("no GPU node is known on this host, so there is nothing to deny")
    return found


def confine(session: Session, targets: Sequence[Target]) -> list[Record]:
    """Moves each tree into a scope of its own.

    :raises NotSupported: one of them cannot be moved; nothing was done.
    :raises FailedAndUndone: something failed; all are where they were.
    """
    done: list[tuple[Target, Record]] = []
    with ExitStack() as held:
        for target in targets:
            held.enter_context(session.records.lock(target.pid, target.start_time))
            check_unrecorded(session, target)
            session.gate.describe(
                target, gpus_of_tree(session, target)
            )  # refuses what cannot be done, before it begins
        session.ledger.prepare()
        job = uuid.uuid4().hex[:12]
        try:
            for target in targets:
                done.append((target, _record(session, target, job)))
                done[-1] = (target, _confine(session, target, done[-1][1]))
        except BaseException as error:
            with uninterrupted():
                for target, _ in reversed(done):
                    record = session.records.find(target.pid, target.start_time)
                    if record is not None:
                        release(session, record, "undone")
            if isinstance(error, GpuisoError):
                raise FailedAndUndone(f"{error.message}; all are where they were", hint=error.hint) from error
            raise
    return [record for _, record in done]


def _record(session: Session, target: Target, job: str) -> Record:
    gpus = tuple(str(gpu.uuid or gpu.pci_address) for gpu in gpus_of_tree(session, target))
    record = Record(target.pid, target.start_time, target.comm, job, "confining", time.time(), gpus)
    session.records.write(record)
    session.write_down("confine", record, "begun")
    return record


def _confine(session: Session, target: Target, record: Record) -> Record:
    gpus = tuple(gpu for gpu in session.inventory.gpus if (gpu.uuid or gpu.pci_address) in record.gpus)

    def remember(memo: Memo) -> None:
        session.records.write(replace(record, gate=dict(memo)))

    memo = session.gate.close(target, gpus, remember)
    record = replace(record, gate=dict(memo)).with_phase("scope")
    session.records.write(record)
    session.write_down("confine", record, "confined")
    return record


def put_back(session: Session, record: Record) -> list[str]:
    """Undoes a :func:`confine`; returns what was done.

    :raises Busy: another gpuiso works on it. :raises GpuisoError: it could not be put back.
    """
    with session.records.lock(record.pid, record.start_time):
        session.ledger.prepare()
        return release(session, record)


def release(session: Session, record: Record, result: str = "released") -> list[str]:
    """The same with the lock held by the caller."""
    done = [] if record.gate is None else session.gate.open(record.gate)
    session.records.remove(record)
    session.write_down("confine", record, result)
    return done
