# SPDX-License-Identifier: Apache-2.0
"""``gpuiso restore``: give reclaimed processes their GPUs back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuiso.cli.numbers import process_id
from gpuiso.cli.reclaim import interruptible
from gpuiso.cli.render.objects import print_object
from gpuiso.errors import NotFound, UsageError

if TYPE_CHECKING:
    from gpuiso.reclaim.give import Given
    from gpuiso.reclaim.records import Record
    from gpuiso.reclaim.session import Session

__all__ = ["restore"]


def restore(
    pid: Annotated[
        list[int] | None, typer.Option("--pid", metavar="N", parser=process_id, help="A process; may be repeated.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All that is reclaimed.")] = False,
    alone: Annotated[
        bool, typer.Option("--alone", help="Only these, not the others that were reclaimed together with them.")
    ] = False,
    gpu: Annotated[
        list[str] | None,
        typer.Option(
            "--gpu", metavar="UUID|OLD=NEW", help="Onto another GPU; OLD=NEW for a process that used several."
        ),
    ] = None,
    libcuda: Annotated[
        str, typer.Option("--libcuda", metavar="PATH", help="The CUDA driver library, where it is in an odd place.")
    ] = "libcuda.so.1",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Give a reclaimed process its GPU back, with its data.

    Thaws it, takes the rules away, looks whether the GPU has the memory, and has the driver restore it: on the same
    GPU, or with --gpu on another. What was reclaimed together is restored together. If a restore fails, the process
    stays reclaimed and keeps its data. A process that was only moved into a scope is put back where it was.

    \b
    Examples:
      gpuiso restore --pid 4711
      gpuiso restore --pid 4711 --gpu GPU-759a6656-c90b-d548-2a90-a29b9fa5ff51
      gpuiso restore --all

    \b
    Exit codes: 0 it runs; 2 wrong usage; 3 not permitted; 4 not reclaimed, or it ended; 5 not supported here;
    6 timed out; 7 failed, and it stays reclaimed; 8 failed, and something is left (gpuiso recover).
    """
    if bool(pid) == everything:
        raise UsageError("name what is to be restored: --pid N, or --all")
    from gpuiso.cli.render.reclaim import ProgressLine
    from gpuiso.host import open_host
    from gpuiso.reclaim.confine import put_back
    from gpuiso.reclaim.give import give
    from gpuiso.reclaim.live import open_session

    line = ProgressLine()
    with interruptible(), open_session(open_host(None), library=libcuda, notify=line) as session:
        records = _records(session, pid or (), alone=alone)
        scopes = [record for record in records if record.phase in ("scope", "confining")]
        others = [record for record in records if record not in scopes]
        moves = _moves(others, gpu or ())
        released = [(record, put_back(session, record)) for record in scopes]
        try:
            given = give(session, others, moves) if others else []
        finally:
            line.clear()
    _print(given, released, as_json=as_json)
    return 0


def _records(session: Session, pids: Sequence[int], *, alone: bool) -> list[Record]:
    known = session.records.all()
    if not pids:
        if not known:
            raise NotFound("nothing is reclaimed")
        return list(known)
    found = []
    for pid in dict.fromkeys(pids):
        record = session.records.find(pid)
        if record is None:
            raise NotFound(f"process {pid} is not reclaimed", hint="gpuiso reclaim --list shows what is")
        found.append(record)
    jobs = {record.job for record in found}
    return found if alone else [record for record in known if record.job in jobs]


def _moves(records: Sequence[Record], gpus: Sequence[str]) -> dict[str, str]:
    from gpuiso.reclaim.give import moved_gpus

    moves: dict[str, str] = {}
    for record in records:
        moves |= moved_gpus(record, gpus) if gpus else {}
    if gpus and not records:
        raise UsageError("--gpu says where a checkpointed process goes: these were only moved into a scope")
    return moves


def _print(given: Sequence[Given], released: Sequence[tuple[Record, list[str]]], *, as_json: bool) -> None:
    if as_json:
        processes: list[dict[str, Any]] = [
            {**_who(one.record), "result": "restored", "memory": one.memory, "seconds": one.seconds} for one in given
        ]
        processes += [{**_who(record), "result": "released"} for record, _ in released]
        print_object({"gpuiso": "restore/1", "processes": processes})
        return
    from gpuiso.cli.render.plain import plain
    from gpuiso.cli.render.reclaim import duration, size, timings

    for one in given:
        print(plain(f"process {one.record.pid} ({one.record.comm}) runs again after {duration(one.seconds['whole'])}"))
        for uuid, used in (one.memory or {}).items():
            print(f"  {size(used)} on {uuid}")
        print(f"  {timings(one.seconds)}")
    for record, done in released:
        print(plain(f"process {record.pid} ({record.comm}) is where it was: {'; '.join(done) or 'it had not moved'}"))


def _who(record: Record) -> dict[str, Any]:
    return {"pid": record.pid, "start_time": record.start_time, "comm": record.comm, "job": record.job}
