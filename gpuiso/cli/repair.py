# SPDX-License-Identifier: Apache-2.0
"""``gpuiso repair``: give a running container back the GPUs that it lost."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuiso.cli.numbers import process_id
from gpuiso.cli.render.objects import print_object
from gpuiso.cli.render.plain import plain
from gpuiso.errors import GpuisoError, UsageError

if TYPE_CHECKING:
    from gpuiso.apply.calls import Calls
    from gpuiso.apply.engine import Outcome
    from gpuiso.apply.state import State
    from gpuiso.host.protocol import Host
    from gpuiso.repair.diagnose import Diagnosis
    from gpuiso.repair.plan import Repair

__all__ = ["repair"]


def repair(
    container: Annotated[
        str | None, typer.Option("--container", metavar="ID", help="A container, by id, its beginning, or name.")
    ] = None,
    pid: Annotated[
        int | None, typer.Option("--pid", metavar="N", parser=process_id, help="A process in the container.")
    ] = None,
    node: Annotated[
        list[str] | None,
        typer.Option("--node", metavar="PATH", help="A node that it is to have, where nothing shows it; repeatable."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and change nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Give a running container back the GPUs that it lost.

    After a daemon-reload, a docker update or any change of its scope a container may get "Operation not permitted" from
    GPU nodes that it could open before. This finds the program that denies, puts the missing rules into the unit's
    properties, so that the next daemon-reload keeps them, changes the program where it is not systemd's, and tries the
    nodes from inside. Nothing is restarted, nothing else changes, and all is undone if a step fails. `gpuiso rules
    remove` takes a repair back.

    Only what the container was given is given back: what its configuration asks for, or a program of its cgroup
    allows. A node in its /dev alone shows nothing, for a container can make nodes.

    \b
    Examples:
      gpuiso repair --container trainer --dry-run
      gpuiso repair --container 4f5d3c2b1a09
      gpuiso repair --pid 4711 --node /dev/nvidia0

    \b
    Exit codes: 0 repaired, or nothing to repair; 2 wrong usage; 3 not permitted; 4 no such container, process or node;
    5 not to be repaired by rules (the gate is named); 7 failed and undone; 8 failed and could not be undone.
    """
    if (container is None) == (pid is None):
        raise UsageError("name one of --container and --pid")
    from gpuiso.apply.applied import load_applied
    from gpuiso.apply.calls import Calls
    from gpuiso.apply.state import State
    from gpuiso.doctor.machine import Machine
    from gpuiso.host import open_host
    from gpuiso.repair.diagnose import diagnose, find
    from gpuiso.repair.plan import plan_repair, repair_key

    host, calls, state = open_host(None), Calls(), State()
    machine = Machine(host)
    found, process = find(machine, container=container, pid=pid)
    diagnosis = diagnose(machine, found, process, named=node or ())
    plan, outcome = None, None
    if diagnosis.lost:
        applied = load_applied(state, repair_key(host, calls, diagnosis))
        plan = plan_repair(host, calls, diagnosis, None if applied is None else applied.policy)
        outcome = None if dry_run else _carry_out(diagnosis, plan, host, state, calls)
    if as_json:
        print_object(_as_json(diagnosis, plan, outcome))
    else:
        _print(diagnosis, plan, outcome)
    return 0


def _carry_out(found: Diagnosis, plan: Repair, host: Host, state: State, calls: Calls) -> Outcome:
    """With an entry in the ledger when it begins, and one when it ends."""
    from gpuiso.apply.engine import carry_out
    from gpuiso.reclaim.ledger import Ledger
    from gpuiso.reclaim.operator import operator

    ledger = Ledger()
    about = {
        "container": found.container.id,
        "name": found.container.name,
        "pid": found.pid,
        "start_time": found.start,
        "nodes": [lost.node.path for lost in found.lost],
        "operator": operator(host),
    }

    def end(result: str, **details: Any) -> None:
        """The change is over by now: what cannot be written is said, and changes nothing."""
        try:
            ledger.append("repair", {**about, "result": result, **details})
        except GpuisoError as error:
            print(plain(f"gpuiso: {result}, but {error.message}"), file=sys.stderr)

    ledger.prepare()
    ledger.append("repair", {**about, "result": "begun"})
    try:
        outcome = carry_out(plan, state=state, calls=calls)
    except BaseException as error:
        end("failed", why=error.message if isinstance(error, GpuisoError) else type(error).__name__)
        raise
    end("repaired")
    return outcome


def _as_json(found: Diagnosis, plan: Repair | None, outcome: Outcome | None) -> dict[str, Any]:
    return {
        "gpuiso": "repair/1",
        "container": found.container.id,
        "name": found.container.name,
        "pid": found.pid,
        "result": "nothing-to-repair" if plan is None else "planned" if outcome is None else "repaired",
        "lost": [
            {
                "path": lost.node.path,
                "major": lost.node.major,
                "minor": lost.node.minor,
                "given": lost.sign,
                "denied_by": [_denial(denial) for denial in lost.denials],
            }
            for lost in found.lost
        ],
        "may_open": [each.path for each in found.has],
        "plan": [] if plan is None else plan.describe(),
        "notes": list(found.notes),
        "verified": [] if outcome is None else outcome.proof.said,
        "recovered": [] if outcome is None else list(outcome.recovered),
    }


def _denial(denial: Any) -> dict[str, Any]:
    program = None if denial.program is None else denial.program.id
    return {"cgroup": denial.cgroup, "program": program, "owner": denial.owner, "rule": denial.rule}


def _print(found: Diagnosis, plan: Repair | None, outcome: Outcome | None) -> None:
    who = f"container {found.container.short} (process {found.pid})"
    for line in () if outcome is None else outcome.recovered:
        print(plain(f"recovered: {line}"))
    if plan is None:
        has = ", ".join(each.path for each in found.has)
        print(plain(f"{who}: nothing to repair: {f'it may open {has}' if has else 'it was given no GPU'}"))
    else:
        print(plain(f"{who} {'has lost' if outcome is None else 'had lost'}:"))
        for lost in found.lost:
            print(plain(f"  {lost.node.path}: {'; '.join(denial.words for denial in lost.denials)} denies it"))
            print(plain(f"    that it had it: {lost.sign}"))
        print("would do:" if outcome is None else "did:")
        for number, line in enumerate(plan.describe(), 1):
            print(plain(f"  {number}. {line}"))
    for line in found.notes:
        print(plain(f"note: {line}"))
    for line in () if outcome is None else outcome.proof.said:
        print(plain(f"verified: {line}"))
