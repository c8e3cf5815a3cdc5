# SPDX-License-Identifier: Apache-2.0
"""``gpuiso reclaim``: take GPUs back from running processes."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuiso.cli.numbers import process_id
from gpuiso.cli.render.objects import print_object
from gpuiso.errors import NotFound, UsageError

if TYPE_CHECKING:
    from gpuiso.reclaim.ladder import Climbed
    from gpuiso.reclaim.records import Record
    from gpuiso.reclaim.selection import Candidate, Selection
    from gpuiso.reclaim.session import Session
    from gpuiso.reclaim.take import Options
    from gpuiso.reclaim.target import Target

__all__ = ["interruptible", "reclaim"]

_RUNGS = ("checkpoint", "term", "kill", "reset")


def reclaim(
    pid: Annotated[
        list[int] | None, typer.Option("--pid", metavar="N", parser=process_id, help="A process; may be repeated.")
    ] = None,
    container: Annotated[
        str | None, typer.Option("--container", metavar="ID", help="Those of a container's processes that hold a GPU.")
    ] = None,
    unit: Annotated[
        str | None, typer.Option("--unit", metavar="NAME", help="Those of a systemd unit's processes that hold a GPU.")
    ] = None,
    gpu: Annotated[
        list[str] | None, typer.Option("--gpu", metavar="UUID", help="Everyone on a GPU; may be repeated.")
    ] = None,
    user: Annotated[
        str | None, typer.Option("--user", metavar="NAME", help="A user's processes that hold a GPU.")
    ] = None,
    scope_only: Annotated[
        bool,
        typer.Option(
            "--scope-only", help="Only move it, with all it started, into a scope that denies GPUs. What is open stays."
        ),
    ] = False,
    until: Annotated[
        str, typer.Option("--until", metavar="|".join(_RUNGS), help="How far to go for what cannot be checkpointed.")
    ] = "checkpoint",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would happen, change nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask; --until reset resets only with it.")] = False,
    show_list: Annotated[bool, typer.Option("--list", help="Show what is reclaimed.")] = False,
    freeze: Annotated[bool, typer.Option("--freeze", help="Stop the process too, until it is restored.")] = False,
    no_rules: Annotated[
        bool, typer.Option("--no-rules", help="Leave its GPU's nodes open to it: no cgroup, no scope.")
    ] = False,
    huge_pages: Annotated[
        bool,
        typer.Option("--huge-pages", help="Set transparent_hugepage to always for the time of the copy (faster)."),
    ] = False,
    lock_timeout: Annotated[
        float, typer.Option("--lock-timeout", metavar="S", min=0.001, help="How long work on the GPU may go on.")
    ] = 10.0,
    term_timeout: Annotated[
        float, typer.Option("--term-timeout", metavar="S", min=0, help="How long SIGTERM is given.")
    ] = 30.0,
    kill_timeout: Annotated[
        float, typer.Option("--kill-timeout", metavar="S", min=0, help="How long SIGKILL is given.")
    ] = 60.0,
    libcuda: Annotated[
        str, typer.Option("--libcuda", metavar="PATH", help="The CUDA driver library, where it is in an odd place.")
    ] = "libcuda.so.1",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Take a GPU back from a running process without ending it.

    The CUDA driver copies the process's GPU memory to host memory and closes every GPU node; that is verified from
    outside, and a scope with rules keeps the GPU closed until "gpuiso restore". Whatever fails, the process runs on as
    before. For what cannot be checkpointed, --until names the last rung that may be tried: SIGTERM, SIGKILL, and a
    reset of the GPU.

    \b
    Examples:
      gpuiso reclaim --pid 4711                    then: gpuiso restore --pid 4711
      gpuiso reclaim --gpu GPU-98b0e715-… --dry-run
      gpuiso reclaim --pid 4711 --until term       lossless if possible, else SIGTERM
      gpuiso reclaim --pid 4711 --scope-only       no new opens; what is open stays
      gpuiso reclaim --list

    \b
    Exit codes: 0 done; 2 wrong usage; 3 not permitted; 4 no such process or GPU; 5 it cannot be checkpointed;
    6 timed out; 7 failed, and everything runs as before; 8 failed, and something is left (gpuiso recover).
    """
    from gpuiso.reclaim.selection import Selection

    asked = Selection(tuple(dict.fromkeys(pid or ())), container, unit, tuple(gpu or ()), user)
    if show_list:
        return _list(as_json=as_json)
    _check(asked, until, scope_only=scope_only, freeze=freeze, no_rules=no_rules, huge_pages=huge_pages)
    how = _How(
        until=until,
        scope_only=scope_only,
        dry_run=dry_run,
        yes=yes,
        freeze=freeze,
        rules=not no_rules,
        huge_pages=huge_pages,
        lock_timeout=lock_timeout,
        term_timeout=term_timeout,
        kill_timeout=kill_timeout,
        as_json=as_json,
    )
    return _reclaim(asked, how, libcuda)


@dataclass(frozen=True)
class _How:
    """The options, checked."""

    until: Any
    scope_only: bool
    dry_run: bool
    yes: bool
    freeze: bool
    rules: bool
    huge_pages: bool
    lock_timeout: float
    term_timeout: float
    kill_timeout: float
    as_json: bool


def _reclaim(asked: Selection, how: _How, libcuda: str) -> int:
    from gpuiso.cli.render.reclaim import ProgressLine
    from gpuiso.host import open_host
    from gpuiso.reclaim.ladder import Timing, climb
    from gpuiso.reclaim.live import open_session
    from gpuiso.reclaim.selection import select
    from gpuiso.reclaim.target import Target

    line = ProgressLine()
    with (
        interruptible(),
        open_session(open_host(None), library=libcuda, rules=how.rules, notify=line) as session,
        ExitStack() as held,
    ):
        candidates = select(session.host, session.inventory, session.memory, asked)
        targets = [held.enter_context(Target.open(session.host, who.pid)) for who in candidates]
        if not how.scope_only:
            targets = _with_cuda(session, targets, asked)
        if how.dry_run:
            return _dry_run(session, targets, how)
        if len(targets) > 1 and not how.yes and not how.as_json:
            _confirm([who for who in candidates if who.pid in {target.pid for target in targets}])
        if how.scope_only:
            return _scope_only(session, targets, as_json=how.as_json)
        timing = Timing(term=how.term_timeout, kill=how.kill_timeout)
        try:
            done = climb(session, targets, how.until, _options(session, how), timing, yes=how.yes)
        finally:
            line.clear()
        _print_done(done, as_json=how.as_json)
    return 0


def _check(asked: Selection, until: str, *, scope_only: bool, freeze: bool, no_rules: bool, huge_pages: bool) -> None:
    if asked.empty:
        raise UsageError("name what is to be reclaimed: --pid, --container, --unit, --gpu or --user")
    if until not in _RUNGS:
        raise UsageError(f"--until {until!r}: the rungs are {', '.join(_RUNGS)}")
    if scope_only and (until != "checkpoint" or freeze or no_rules or huge_pages):
        raise UsageError("--scope-only moves and denies, nothing else: it goes with no other way of reclaiming")
    if freeze and no_rules:
        raise UsageError("--freeze needs the cgroup that --no-rules does without")


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM and SIGHUP walk back as Ctrl-C does."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _options(session: Session, how: _How) -> Options:
    from gpuiso.reclaim.huge_pages import HugePages
    from gpuiso.reclaim.take import Options

    return Options(how.lock_timeout, how.freeze, HugePages(session.host) if how.huge_pages else None)


def _with_cuda(session: Session, targets: Sequence[Target], asked: Selection) -> list[Target]:
    """Of a group, those that have a CUDA context: a forked child that only inherited descriptors is not meant."""
    from gpuiso.reclaim.take import look

    kept = []
    for target in targets:
        if target.pid not in asked.pids and [r.kind for r in look(session, target)[1]] == ["no-cuda"]:
            print(f"gpuiso: {target} has a GPU node open and uses no CUDA: left as it is", file=sys.stderr)
            continue
        kept.append(target)
    if not kept:
        raise NotFound("none of these processes uses CUDA", hint="--scope-only works with any process")
    return kept


def _confirm(candidates: Sequence[Candidate]) -> None:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    from gpuiso.cli.render.console import make_console
    from gpuiso.cli.render.reclaim import candidate_table

    make_console(sys.stderr).print(candidate_table(candidates))
    if not typer.confirm(f"Take the GPUs of these {len(candidates)} processes?", err=True):
        raise UsageError("nothing was done")


def _dry_run(session: Session, targets: Sequence[Target], how: _How) -> int:
    from gpuiso.cli.render.console import make_console
    from gpuiso.cli.render.reclaim import candidate_table
    from gpuiso.reclaim.forecast import forecast

    found = [forecast(session, target, how.until, scope_only=how.scope_only, yes=how.yes) for target in targets]
    if how.as_json:
        print_object({"gpuiso": "reclaim-plan/1", "processes": [one.as_json() for one in found]})
        return 0
    console = make_console()
    for one in found:
        console.print(f"{one.target}, {', '.join(one.gpus) or 'no GPU'}")
        for reason in one.reasons:
            console.print(f"  cannot be checkpointed: {reason.says}")
        for number, step in enumerate(one.steps, 1):
            console.print(f"  {number}  {step}")
        if one.sharers:
            console.print("  on the same GPUs, and left alone:")
            console.print(candidate_table(one.sharers))
        for what in one.not_examined:
            console.print(f"  not examined: {what}")
    return 0


def _scope_only(session: Session, targets: Sequence[Target], *, as_json: bool) -> int:
    from gpuiso.reclaim.confine import confine

    records = confine(session, targets)
    if as_json:
        print_object(
            {"gpuiso": "reclaim/1", "processes": [{**_record_json(record), "rung": "scope"} for record in records]}
        )
        return 0
    for record in records:
        where = "" if record.gate is None else record.gate.get("unit") or record.gate["cgroup"]
        print(
            f"process {record.pid} ({record.comm}) and all it started are in {where}: {', '.join(record.gpus)} denied"
        )
        print("  this gates new opens; GPU memory, mappings and files that are open stay as they are")
        print(f"  gpuiso restore --pid {record.pid} puts it back")
    return 0


def _record_json(record: Record) -> dict[str, Any]:
    return {
        "pid": record.pid,
        "start_time": record.start_time,
        "comm": record.comm,
        "job": record.job,
        "gpus": list(record.gpus),
        "memory": record.memory,
        "frozen": record.frozen,
    }


def _print_done(done: Sequence[Climbed], *, as_json: bool) -> None:
    if as_json:
        processes = [
            {
                **_record_json(one.record),
                "rung": one.rung,
                "seconds": one.seconds,
                "failed": one.failed,
                "not_examined": list(one.not_examined),
            }
            for one in done
        ]
        print_object({"gpuiso": "reclaim/1", "processes": processes})
        return
    from gpuiso.cli.render.plain import plain
    from gpuiso.cli.render.reclaim import duration, size, timings

    words = {
        "checkpoint": "reclaimed",
        "term": "ended by SIGTERM",
        "kill": "ended by SIGKILL",
        "reset": "its GPU was reset",
    }
    for one in done:
        record = one.record
        whole = one.seconds.get("whole", sum(one.seconds.values()))
        print(plain(f"process {record.pid} ({record.comm}): {words[one.rung]} in {duration(whole)}"))
        for uuid, used in record.memory.items():
            print(f"  {size(used)} free again on {uuid}")
        for rung, why in one.failed.items():
            print(plain(f"  {rung} did not do: {why}"))
        if one.rung == "checkpoint":
            print(f"  {timings(one.seconds)}")
            print(f"  gpuiso restore --pid {record.pid} gives it back")
        for what in one.not_examined:
            print(plain(f"  not examined: {what}"))


def _list(*, as_json: bool) -> int:
    from gpuiso.host.live import LiveHost
    from gpuiso.reclaim.records import Records
    from gpuiso.reclaim.target import is_alive

    records = Records().all()
    host = LiveHost()
    ended = [record for record in records if not is_alive(host, record.pid, record.start_time)]
    if as_json:
        found = []
        for record in records:
            told = {**_record_json(record), "phase": record.phase, "time": record.time, "ended": record in ended}
            found.append(told)
        print_object({"gpuiso": "reclaim-list/1", "reclaimed": found})
        return 0
    if not records:
        print("nothing is reclaimed")
        return 0
    from gpuiso.cli.render.console import make_console
    from gpuiso.cli.render.reclaim import record_table

    make_console().print(record_table(records, ended, time.time()))
    if ended or any(not record.finished for record in records):
        print("gpuiso recover puts right what was interrupted, and clears up after what ended")
    return 0
