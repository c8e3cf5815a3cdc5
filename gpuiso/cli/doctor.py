# SPDX-License-Identifier: Apache-2.0
"""``gpuiso doctor``: why are GPUs missing, denied, or visible when they should not be?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuiso.cli.numbers import process_id
from gpuiso.cli.render.objects import print_object
from gpuiso.errors import UsageError

if TYPE_CHECKING:
    from gpuiso.doctor.engine import Report
    from gpuiso.host.protocol import Host

__all__ = ["doctor"]

_NPD_NVML_DEADLINE = 2.0  # seconds: --npd answers within 5, whatever hangs


def doctor(
    pid: Annotated[
        int | None,
        typer.Option("--pid", metavar="N", parser=process_id, help="Examine this process, and the host for it."),
    ] = None,
    container: Annotated[
        str | None,
        typer.Option(
            "--container", metavar="ID", help="Examine a container of any engine: its id, the start of it, or its name."
        ),
    ] = None,
    unit: Annotated[
        str | None,
        typer.Option("--unit", metavar="NAME", help="Examine the processes of a systemd unit (.service if no suffix)."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Examine every container and every unit.")] = False,
    record_in: Annotated[
        str | None,
        typer.Option("--from", metavar="RECORD", help="Examine a recorded host (a directory or .tar.gz)."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    as_npd: Annotated[
        bool,
        typer.Option(
            "--npd", help="One line for node-problem-detector: exit 0 OK, 1 problem, 2 unknown; within 5 seconds."
        ),
    ] = False,
    html: Annotated[
        str | None,
        typer.Option("--html", metavar="FILE", help="Write one page for a browser, complete in itself."),
    ] = None,
    probe: Annotated[
        bool,
        typer.Option("--probe", help="Also try each access, by a child in the process's place (opens nothing)."),
    ] = False,
    record_out: Annotated[
        str | None,
        typer.Option("--record", metavar="FILE", help="Write what was read to FILE.tar.gz or a new directory."),
    ] = None,
    raw: Annotated[
        bool,
        typer.Option("--raw", help="With --record: keep UUIDs, serials, host and user names, environment values."),
    ] = False,
    rules: Annotated[bool, typer.Option("--rules", help="List what can be found, one rule a line.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="With --rules: as the page docs/rules.md.")] = False,
) -> int:
    """Find out why GPUs are missing, denied or visible by mistake.

    Reads this host (or a record of one), changes nothing, and says for each fault what the cause is, what was read to
    know it, and what to do. Of the processes those are examined that hold or select a GPU, unless --pid, --container,
    --unit or --all says which.

    \b
    Examples:
      gpuiso doctor
      gpuiso doctor --pid 4711
      gpuiso doctor --container train             Docker, podman, containerd, CRI-O, runc or crun
      gpuiso doctor --record host.tar.gz          send this to somebody
      gpuiso doctor --from host.tar.gz --json     look at it elsewhere
      gpuiso doctor --html report.html            the same for a browser
      gpuiso doctor --npd                         as a node-problem-detector plugin

    \b
    Exit codes: 0 nothing worse than information; 1 an error or a warning; 2 wrong usage, a bad record, or a FILE that
    cannot be written; 3 not permitted; 4 no such process, container, unit or record, or it does not run; 7 the record
    could not be written.
    """
    scope = _scope(pid, container, unit, everything)
    _check_options(
        as_json=as_json, as_npd=as_npd, record_out=record_out, raw=raw, rules=rules, markdown=markdown, scope=scope
    )
    if html is not None and (as_json or as_npd or rules):
        raise UsageError("--html writes a page: it does not go with --json, --npd or --rules")
    if rules:
        return _print_rules(as_json=as_json, markdown=markdown)
    if as_npd:
        from gpuiso.cli.npd import npd

        return npd(lambda: _open(record_in, as_npd=True), scope)
    host = _open(record_in, as_npd=False)
    from gpuiso.doctor.engine import examine

    if record_out is not None:
        from gpuiso.host.recorder import Recorder

        host = Recorder(host)  # so that the record answers all that the examination asks
    report = examine(host, **scope, probe=probe)
    if record_out is not None:
        _write_record(host, record_out, raw=raw, report=report)
    if as_json:
        print_object(report.as_json())
    elif html is not None:
        _write_page(html, report)
    else:
        from gpuiso.cli.render.console import make_console
        from gpuiso.cli.render.report import print_report

        print_report(make_console(), report)
    return 1 if report.bad else 0


def _scope(pid: int | None, container: str | None, unit: str | None, everything: bool) -> dict[str, Any]:
    """What is to be examined, as options of examine()."""
    given = {"pid": pid, "container": container, "unit": unit, "everything": everything or None}
    scope = {name: value for name, value in given.items() if value is not None}
    if len(scope) > 1:
        raise UsageError("--pid, --container, --unit and --all exclude each other: one examination has one object")
    for name, value in scope.items():
        if value == "":
            raise UsageError(f"--{name} needs a name")
    return scope


def _check_options(
    *,
    as_json: bool,
    as_npd: bool,
    record_out: str | None,
    raw: bool,
    rules: bool,
    markdown: bool,
    scope: dict[str, Any],
) -> None:
    if as_npd and (as_json or record_out is not None):
        raise UsageError("--npd prints one line: it does not go with --json or --record")
    if raw and record_out is None:
        raise UsageError("--raw goes with --record FILE")
    if markdown and not rules:
        raise UsageError("--markdown goes with --rules")
    if rules and (as_npd or scope or record_out is not None):
        raise UsageError("--rules lists the rules: it does not go with --npd, --record or an object to examine")


def _open(record: str | None, *, as_npd: bool) -> Host:
    from gpuiso.host import open_host

    if record is None and as_npd:
        from gpuiso.host.live import LiveHost

        # Not prefetched: the child that --npd forks must be NVML's own parent.
        return LiveHost(nvml_deadline=_NPD_NVML_DEADLINE)
    return open_host(record)


def _print_rules(*, as_json: bool, markdown: bool) -> int:
    from gpuiso.doctor.registry import all_rules

    found = all_rules()
    if as_json:
        rules = [
            {"rule": r.id, "severity": r.severity, "title": r.title, "summary": r.summary, "sources": list(r.sources)}
            for r in found
        ]
        print_object({"gpuiso": "doctor-rules/1", "rules": rules})
    elif markdown:
        from gpuiso.cli.render.rules import rules_page

        print(rules_page(found), end="")
    else:
        width = max(len(rule.id) for rule in found)
        for rule in found:
            print(f"{rule.id:{width}}  {rule.severity:7}  {rule.summary}")
    return 0


def _write_page(file: str, report: Report) -> None:
    from gpuiso.cli.render.html_file import write_page
    from gpuiso.cli.render.html_report import report_page
    from gpuiso.cli.render.plain import plain
    from gpuiso.cli.render.report import verdict

    write_page(file, report_page(report))
    print(plain(verdict(report)))
    print(plain(f"written to {file}"))


def _write_record(host: Host, destination: str, *, raw: bool, report: Report) -> None:
    import sys

    from gpuiso.cli.render.plain import one_line
    from gpuiso.host.record import write_record

    def progress(what: str) -> None:
        print(f"recording {what}", file=sys.stderr)

    summary = write_record(
        host, destination, raw=raw, pids=report.processes, progress=progress if sys.stderr.isatty() else None
    )
    print(one_line(f"recorded {summary.files} files to {destination}"), file=sys.stderr)
