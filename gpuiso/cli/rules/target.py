# SPDX-License-Identifier: Apache-2.0
"""What a verb of ``gpuiso rules`` works on: one of --cgroup, --unit, --container and --pid."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gpuiso.cli.numbers import process_id
from gpuiso.errors import NotSupported, UsageError

if TYPE_CHECKING:
    from gpuiso.apply.calls import Calls
    from gpuiso.apply.target import Target
    from gpuiso.host.protocol import Host

__all__ = ["CgroupOption", "ContainerOption", "PidOption", "UnitOption", "choose_one", "existing_target"]

CgroupOption = Annotated[
    str | None,
    typer.Option("--cgroup", metavar="PATH", help="A cgroup, from the root of the tree: /gpu/job1."),
]
UnitOption = Annotated[str | None, typer.Option("--unit", metavar="NAME", help="A unit of systemd.")]
ContainerOption = Annotated[
    str | None, typer.Option("--container", metavar="ID", help="A running container, by id or name.")
]
PidOption = Annotated[int | None, typer.Option("--pid", metavar="N", parser=process_id, help="A process.")]


def choose_one(**given: object) -> None:
    """:raises UsageError: unless exactly one is given."""
    names = [f"--{name}" for name in given]
    if sum(value is not None for value in given.values()) != 1:
        raise UsageError(f"give one of {', '.join(names[:-1])} and {names[-1]}")


def existing_target(
    host: Host,
    calls: Calls,
    *,
    cgroup: str | None = None,
    unit: str | None = None,
    container: str | None = None,
    pid: int | None = None,
    create: bool = False,
    change: bool = True,
) -> Target:
    """The target that one of the options names; for a process the cgroup that it is in.

    With ``change`` it must be one that gpuiso may change, and for a process it is the one that was made for it, if any.
    """
    from gpuiso.apply.container import container_cgroup
    from gpuiso.apply.ownership import owned, unit_target
    from gpuiso.apply.plan_pid import made_for
    from gpuiso.apply.target import find_cgroup
    from gpuiso.host import process

    if unit is not None:
        return unit_target(host, calls, unit)
    if container is not None:
        cgroup = container_cgroup(host, container)
    elif pid is not None:
        places = process.cgroups(host, pid)
        cgroup = places.get("") if host.cgroup_mode != "legacy" else places.get("devices")
        if cgroup in (None, "/"):
            raise NotSupported(f"process {pid} is in the root cgroup, which has no rules")
        if change:
            cgroup = made_for(host, pid, cgroup or "") or cgroup
    target = find_cgroup(host, calls, cgroup or "", create=create)
    try:
        return owned(host, calls, target)
    except NotSupported:
        if change:
            raise
        return target
