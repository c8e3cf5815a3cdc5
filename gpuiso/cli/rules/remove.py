# SPDX-License-Identifier: Apache-2.0
"""``gpuiso rules remove``: put back what was before."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuiso.cli.render.objects import print_object
from gpuiso.cli.render.plain import plain
from gpuiso.cli.rules.target import CgroupOption, ContainerOption, PidOption, UnitOption, choose_one, existing_target

__all__ = ["remove_rules"]


def remove_rules(
    cgroup: CgroupOption = None,
    unit: UnitOption = None,
    container: ContainerOption = None,
    pid: PidOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Take the rules of a target away again.

    Programs, limits, controllers, properties and cgroups are as they were. What is remembered is kept until the next
    boot. Without that, only gpuiso's own device program is taken away.

    \b
    Examples:
      gpuiso rules remove --cgroup /gpu/job1
      gpuiso rules remove --unit jupyter.service

    \b
    Exit codes: 0 done; 2 wrong usage; 3 not permitted; 4 nothing of gpuiso's there; 8 something could not be put back.
    """
    choose_one(cgroup=cgroup, unit=unit, container=container, pid=pid)
    from gpuiso.apply.calls import Calls
    from gpuiso.apply.remove import remove
    from gpuiso.apply.state import State
    from gpuiso.host import open_host

    host, calls = open_host(None), Calls()
    target = existing_target(host, calls, cgroup=cgroup, unit=unit, container=container, pid=pid)
    removed = remove(target, state=State(), calls=calls)
    if as_json:
        print_object(
            {
                "gpuiso": "rules-remove/1",
                "target": target.key,
                "done": list(removed.done),
                "remembered": removed.remembered,
                "recovered": list(removed.recovered),
            }
        )
        return 0
    for line in removed.recovered:
        print(plain(f"recovered: {line}"))
    print(plain(f"the rules of {target.key} are gone:"))
    for line in removed.done or ("nothing was left to put back",):
        print(plain(f"  {line}"))
    return 0
