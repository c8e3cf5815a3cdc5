# SPDX-License-Identifier: Apache-2.0
"""Which workload a process belongs to, told by its place in the cgroup tree.

A container is what its engine or its cgroup says, a unit what systemd named; Slurm keeps its jobs below one scope. A
login session and a terminal hold programs that have nothing to do with each other: there each process stands alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpuiso.doctor.map.model import Kind, Member
from gpuiso.host.cgroup_members import places
from gpuiso.host.containers import Containers, unit_in_path

__all__ = ["Place", "place_of"]

_JOB = re.compile(r"(?P<top>(?:/[^/]+)*?/job_(?P<id>\d+))(?:/|$)")
_MANAGER = re.compile(r"user@\d+\.service")
_SESSION = re.compile(r"session-[^/]*\.scope|init\.scope|(?:vte|tmux)-spawn-[^/]*\.scope")


@dataclass(frozen=True, slots=True)
class Place:
    """What tells workloads apart: two processes with equal places belong together."""

    kind: Kind
    name: str
    id: str | None = None
    cgroup: str | None = None


def place_of(member: Member, containers: Containers) -> Place:
    """The workload of a process, by the first of its cgroups that says something."""
    where = places(member.cgroups)
    container = containers.at(where)
    if container is not None:
        return Place("container", container.short, container.id, container.cgroup)
    for path in where:
        job = _JOB.match(path)
        if job is not None:
            return Place("job", job["id"], job["id"], job["top"])
        if not path.endswith(".slice") and not _shared(path):
            return _unit(path) or Place("cgroup", path, None, path)
    return Place("process", str(member.pid), None, where[0] if where else "/")


def _shared(path: str) -> bool:
    """Whether a cgroup is that of a session, of a terminal or of a service manager itself."""
    *_, last = (part for part in path.split("/") if not part.endswith(".slice"))
    return any(_SESSION.fullmatch(part) for part in path.split("/")) or _MANAGER.fullmatch(last) is not None


def _unit(path: str) -> Place | None:
    """The unit of the system's manager or, below a user's, of that one's."""
    unit = unit_in_path(path)
    if unit is None:
        return None
    top, _, rest = path.partition(f"/{unit}/")
    if _MANAGER.fullmatch(unit):
        inner = _unit(f"/{rest}")
        return None if inner is None else Place("unit", inner.name, None, f"{top}/{unit}{inner.cgroup}")
    return Place("unit", unit, None, path if not rest else f"{top}/{unit}")
