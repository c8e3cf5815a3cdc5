# SPDX-License-Identifier: Apache-2.0
"""``gpuiso explain``: why may (or may not) a process open a device node?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gpuiso.cli.numbers import process_id
from gpuiso.cli.render.objects import print_object
from gpuiso.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from gpuiso.doctor.gates import Explanation

__all__ = ["explain"]

_EXIT = {"allow": 0, "deny": 1, "unknown": 5}
_STYLES = {"allow": "green", "deny": "bold red", "unknown": "yellow"}


def explain(
    node: Annotated[str, typer.Argument(metavar="NODE", help="A device node as the process names it: /dev/nvidia0.")],
    pid: Annotated[int | None, typer.Option("--pid", metavar="N", parser=process_id, help="The process.")] = None,
    cgroup: Annotated[
        str | None,
        typer.Option(
            "--cgroup", metavar="PATH", help="A v2 cgroup, from the root of the tree: /system.slice/x.service."
        ),
    ] = None,
    access: Annotated[str, typer.Option("--access", metavar="RWM", help="Any of r, w and m (mknod).")] = "rw",
    probe: Annotated[
        bool, typer.Option("--probe", help="Also try it, by a child in the process's place (opens nothing).")
    ] = False,
    record: Annotated[
        str | None, typer.Option("--from", metavar="RECORD", help="Look at a recorded host (a directory or .tar.gz).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Explain which gate allows or denies a device node, and why.

    For one process, or for whatever runs in a cgroup. The gates stand in the order in which the kernel
    meets them: the path in the process's own /dev, the mount, the mode, the device filters of every cgroup level, the
    driver. Every filter program is read and run in an interpreter, whoever loaded it. A process that has the node open
    already is not stopped by any gate: filters act on open alone.

    Landlock rules of a process cannot be seen from outside, and seccomp filters are not evaluated (a note tells of
    one): both may refuse what every gate allows. --probe takes on neither, nor the label of a security module, and
    does not try mknod.

    \b
    Examples:
      gpuiso explain --pid 4711 /dev/nvidia0
      gpuiso explain --pid 4711 /dev/nvidia0 --probe
      gpuiso explain --cgroup /system.slice/docker-1234.scope /dev/nvidiactl

    \b
    Exit codes: 0 allowed; 1 denied; 2 wrong usage; 4 no such process, cgroup or record; 5 it cannot be known.
    """
    _check(node, pid, cgroup, access, probe=probe)
    from gpuiso.doctor import gates
    from gpuiso.host import open_host

    host = open_host(record)
    if cgroup is not None:
        cgroup = "/" + "/".join(part for part in cgroup.split("/") if part)
        answer = gates.explain_cgroup(host, cgroup, node, access)
        held = 0
    else:
        from gpuiso.doctor.gates.held import descriptors_on

        answer = gates.explain(host, pid or 0, node, access, probe=probe)
        held = descriptors_on(host, pid or 0, node)
    if as_json:
        print_object(answer.as_json())
    else:
        from gpuiso.cli.render.console import make_console

        _print(make_console(), answer, f"cgroup {cgroup} (as root)" if cgroup is not None else f"pid {pid}", held)
    return _EXIT[answer.verdict]


def _check(node: str, pid: int | None, cgroup: str | None, access: str, *, probe: bool) -> None:
    if (pid is None) == (cgroup is None):
        raise UsageError("give one of --pid N and --cgroup PATH")
    if not access or set(access) - set("rwm"):
        raise UsageError(f"--access {access!r}: only r, w and m are known, at least one")
    if not node.startswith("/"):
        raise UsageError(f"{node!r} is not an absolute path", hint=f"did you mean /dev/{node}?")
    if cgroup is not None and not cgroup.startswith("/"):
        raise UsageError(f"--cgroup {cgroup!r} does not start with /: it is a path from the root of the cgroup tree")
    if cgroup is not None and {".", ".."} & set(cgroup.split("/")):
        raise UsageError(f"--cgroup {cgroup!r} has '.' or '..' in it: it is a path from the root of the tree down")
    if probe and pid is None:
        raise UsageError("--probe tries in a process's place: it goes with --pid")


def _print(console: Console, answer: Explanation, who: str, held: int) -> None:
    from rich.table import Table
    from rich.text import Text

    words = {"allow": "may open", "deny": "may not open", "unknown": "cannot be known to open"}
    denied = answer.denied_by
    line = Text.assemble(
        (f"{who} {words[answer.verdict]} {answer.node}", _STYLES[answer.verdict]), f" for {answer.access}"
    )
    console.print(line)
    if denied is not None:
        console.print(f"because of {denied.gate} at {denied.where} ({denied.by}): {denied.says}")
    elif answer.verdict == "unknown":
        console.print(f"because {answer.unknown_because}")
    if answer.disagreement is not None:
        console.print(Text(f"Contradiction: {answer.disagreement}", style="bold yellow"))
    for note in answer.notes:
        console.print(Text(f"Note: {note}.", style="yellow"))
    if held:
        console.print(
            f"It has the node open already ({held} descriptors): what is open stays open, whatever is denied now."
        )
    console.print()
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("", "gate", "where", "by", "says"):
        table.add_column(name, overflow="fold")
    for gate in answer.gates:
        table.add_row(
            Text(gate.verdict, style=_STYLES[gate.verdict]),
            Text(gate.gate),
            Text(gate.where),
            Text(gate.by),
            Text(gate.says),
        )
    console.print(table)
