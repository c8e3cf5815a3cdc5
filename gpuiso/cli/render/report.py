# SPDX-License-Identifier: Apache-2.0
"""A doctor's report for people: the verdict, each finding with its fix, then a picture of the host."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING

from gpuiso.cli.own_name import own_name
from gpuiso.cli.render.host import host_tree
from gpuiso.cli.render.plain import one_line
from gpuiso.cli.render.unexamined import lines_by_reason
from gpuiso.doctor.engine import Report
from gpuiso.doctor.finding import Finding

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

__all__ = ["print_report", "verdict"]

_STYLES = {"error": "bold red", "warning": "bold yellow", "info": "cyan"}
_EXAMPLE = "examples/hosts/h200-x4"
_LABEL = 10  # columns for the words cause, evidence, fix


def verdict(report: Report) -> str:
    """The report in one line."""
    counts = Counter(finding.severity for finding in report.findings)
    where = one_line(report.machine.host.name)
    parts = [
        f"{counts[severity]} {severity}{'s' if counts[severity] != 1 and severity != 'info' else ''}"
        for severity in ("error", "warning", "info")
        if counts[severity]
    ]
    if report.bad:
        return f"{', '.join(parts)} on {where}"
    gpus = report.machine.inventory.gpus
    if report.hidden:
        seen = f"no GPU can be seen on {where}, though NVIDIA's driver is loaded: its /proc and /sys are hidden"
        return seen if not parts else f"{seen}; {', '.join(parts)}"
    if not gpus:
        return f"no GPU on {where}" if not parts else f"no GPU on {where}; {', '.join(parts)}"
    count = "1 GPU" if len(gpus) == 1 else f"{len(gpus)} GPUs"
    healthy = "healthy"
    if report.verdict == "incomplete":
        rules = "1 rule" if len(report.unsure) == 1 else f"{len(report.unsure)} rules"
        healthy = f"nothing found wrong, {rules} could not be examined"
    return f"{healthy}: {count} on {where}" + (f"; {', '.join(parts)}" if parts else "")


def print_report(console: Console, report: Report) -> None:
    """The whole report."""
    from rich.text import Text

    style = "bold yellow" if report.verdict == "incomplete" else "bold green"
    if report.bad:
        style = _STYLES[report.findings[0].severity]
    console.print(Text(verdict(report), style=style))
    if report.verdict == "no-gpu" and report.machine.host.live and not report.findings:
        console.print(_where_gpus_are())
    for finding in report.findings:
        console.print()
        _print_finding(console, finding)
    console.print()
    console.print(host_tree(report.machine))
    lines = _not_examined(report)
    if lines:
        console.print()
        console.print(Text("Not examined (--json names the rules)", style="bold"))
        for line in lines:
            console.print(Text(f"  {line}", style="dim"))


def _where_gpus_are() -> str:
    name = own_name()
    if os.path.isdir(_EXAMPLE):
        return f"To see a host with GPUs: {name} doctor --from {_EXAMPLE}"
    return f"To see another host: {name} doctor --record FILE.tar.gz there, {name} doctor --from FILE.tar.gz here"


def _not_examined(report: Report) -> list[str]:
    entries = report.not_examined
    return lines_by_reason(
        (entry.what if entry.pid is None else f"{entry.what} (pid {entry.pid})", entry.why) for entry in entries
    )


def _print_finding(console: Console, finding: Finding) -> None:
    from rich.text import Text

    about = ", ".join(f"{name} {value}" for name, value in finding.target.as_json().items())
    console.print(
        Text.assemble(
            (finding.severity.upper(), _STYLES[finding.severity]),
            f"  {finding.title}",
            (f"  ({about})" if about else "", "dim"),
            (f"  {finding.rule.id}", "dim"),
        )
    )
    _print_part(console, "cause", Text(finding.cause))
    for place, evidence in enumerate(finding.evidence):
        _print_part(console, "" if place else "evidence", Text.assemble((evidence.source, "dim"), f": {evidence.says}"))
    for place, fix in enumerate(finding.fix):
        _print_part(console, "" if place else "fix", Text(fix.text))
        if fix.command is not None:
            # Never wrapped: it is there to be copied.
            line = Text.assemble(" " * (2 + _LABEL), ("$ ", "dim"), (fix.command, "bold"))
            console.print(line, soft_wrap=True)


def _print_part(console: Console, label: str, text: Text) -> None:
    from rich.padding import Padding
    from rich.table import Table

    grid = Table.grid(padding=(0, 0))
    grid.add_column(width=_LABEL, no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(label, text)
    console.print(Padding(grid, (0, 0, 0, 2)))
