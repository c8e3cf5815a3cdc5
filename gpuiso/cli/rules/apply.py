# SPDX-License-Identifier: Apache-2.0
"""``gpuiso rules apply``: make the kernel hold a policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gpuiso.cli.render.objects import print_object
from gpuiso.cli.render.plain import plain
from gpuiso.cli.rules.source import PolicyFile, load_policy
from gpuiso.cli.rules.target import CgroupOption, ContainerOption, PidOption, UnitOption, choose_one, existing_target
from gpuiso.errors import NotFound, UsageError

if TYPE_CHECKING:
    from gpuiso.apply.engine import Outcome
    from gpuiso.apply.plan import Plan

__all__ = ["apply_policy"]


def apply_policy(
    file: PolicyFile,
    cgroup: CgroupOption = None,
    unit: UnitOption = None,
    container: ContainerOption = None,
    pid: PidOption = None,
    create: Annotated[bool, typer.Option("--create", help="Make the cgroup if it does not exist.")] = False,
    persistent: Annotated[
        bool, typer.Option("--persistent", help="For a unit: for good, not only until the next boot.")
    ] = False,
    narrower: Annotated[
        bool, typer.Option("--narrower", help="Apply it although something else denies part of what it allows.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and change nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Apply a policy to a cgroup, unit, container or process.

    A cgroup of systemd's is changed through its unit, so that a daemon-reload keeps the rules. A process is moved, with
    all its descendants, into a cgroup of its own. What is open stays open: rules act when a device is opened.

    Every step is written down before it is done, read back, and undone if a later one fails; in the end accesses are
    tried from inside. `gpuiso rules remove` puts back what was.

    \b
    Examples:
      gpuiso rules apply --cgroup /gpu/job1 --create gpu.yaml --dry-run
      gpuiso rules apply --container 4f5d3c2b1a09 gpu.yaml
      gpuiso rules apply --pid 4711 gpu.yaml
      echo 'allow gpu 0' | gpuiso rules apply --unit jupyter.service -

    \b
    Exit codes: 0 it holds; 2 wrong usage or bad policy; 3 not permitted; 4 no such target, or it was removed meanwhile;
    5 not supported here; 7 failed and undone; 8 failed and could not be undone.
    """
    choose_one(cgroup=cgroup, unit=unit, container=container, pid=pid)
    if create and cgroup is None:
        raise UsageError("--create goes with --cgroup")
    from gpuiso.apply.calls import Calls
    from gpuiso.apply.engine import carry_out
    from gpuiso.apply.make_plan import make_plan
    from gpuiso.apply.plan_pid import plan_pid
    from gpuiso.apply.state import State
    from gpuiso.host import open_host

    host, calls = open_host(None), Calls()
    policy = load_policy(file, host)
    if pid is not None:
        if persistent:
            raise UsageError("--persistent goes with --unit")
        plan = plan_pid(host, calls, pid, policy, file=file, narrower=narrower)
    else:
        try:
            target = existing_target(host, calls, cgroup=cgroup, unit=unit, container=container, create=create)
        except NotFound as error:
            raise NotFound(error.message, hint="--create makes it" if cgroup is not None else error.hint) from error
        plan = make_plan(host, calls, target, policy, file=file, narrower=narrower, persistent=persistent)
    outcome = None if dry_run else carry_out(plan, state=State(), calls=calls)
    if as_json:
        print_object(_as_json(plan, outcome))
    else:
        _print(plan, outcome)
    return 0


def _as_json(plan: Plan, outcome: Outcome | None) -> dict[str, object]:
    proof = None if outcome is None else outcome.proof
    return {
        "gpuiso": "rules-apply/1",
        "target": plan.target.key,
        "applied": outcome is not None,
        "plan": plan.describe(),
        "notes": list(plan.notes),
        "verified": [] if proof is None else proof.said,
        "narrower": [] if proof is None else proof.narrower,
        "recovered": [] if outcome is None else list(outcome.recovered),
    }


def _print(plan: Plan, outcome: Outcome | None) -> None:
    for line in () if outcome is None else outcome.recovered:
        print(plain(f"recovered: {line}"))
    print(plain(f"{'would do' if outcome is None else 'did'} for {plan.target.key}:"))
    for number, line in enumerate(plan.describe(), 1):
        print(plain(f"  {number}. {line}"))
    for line in plan.notes:
        print(plain(f"note: {line}"))
    if outcome is None:
        return
    for line in outcome.proof.said:
        print(plain(f"verified: {line}"))
    for line in outcome.proof.narrower:
        print(plain(f"narrower: {line}"))
