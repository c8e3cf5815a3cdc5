# SPDX-License-Identifier: Apache-2.0
"""Which workload a process belongs to, told by its place in the cgroup tree.

Container engines name their cgroups after the container's id, systemd after the unit; Slurm keeps its jobs below one
scope. A login session and a terminal hold programs that have nothing to do with each other: there each process stands
alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gpuiso.doctor.map.model import Kind, Member
from gpuiso.errors import Unknown
from gpuiso.host.protocol import Host

__all__ = ["Place", "container_names", "place_of"]

_CONTAINER = re.compile(
    r"(?P<top>(?:/[^/]+)*?/(?:(?:docker|libpod|cri-containerd|crio|nerdctl|podman|containerd)-)?(?P<id>[0-9a-f]{64})(?:\.scope)?)(?:/|$)"
)
_LXC = re.compile(r"(?P<top>(?:/[^/]+)*?/(?:lxc\.payload\.|lxc/|machine-)(?P<id>[^/]+?)(?:\.scope)?)(?:/|$)")
_JOB = re.compile(r"(?P<top>(?:/[^/]+)*?/job_(?P<id>\d+))(?:/|$)")
_UNIT = re.compile(r"(?P<top>(?:/[^/]+)*/(?P<id>[^/]+\.(?:service|scope)))(?:/|$)")
_SESSION = re.compile(r"session-[^/]*\.scope|user@\d+\.service|init\.scope|(?:vte|tmux)-spawn-[^/]*\.scope")


@dataclass(frozen=True, slots=True)
class Place:
    """What tells workloads apart: two processes with equal places belong together."""

    kind: Kind
    name: str
    id: str | None = None
    cgroup: str | None = None


def place_of(member: Member, names: Mapping[str, str]) -> Place:
    """The workload of a process; ``names`` are those of containers by id."""
    path = _path(member.cgroups)
    found = _CONTAINER.match(path)
    if found is not None:
        return Place("container", names.get(found["id"], found["id"][:12]), found["id"], found["top"])
    found = _LXC.match(path)
    if found is not None:
        return Place("container", found["id"], found["id"], found["top"])
    found = _JOB.match(path)
    if found is not None:
        return Place("job", found["id"], found["id"], found["top"])
    found = _UNIT.match(path)
    if found is not None:
        if _SESSION.fullmatch(found["id"]):
            return Place("process", str(member.pid), None, path)
        return Place("unit", found["id"], None, found["top"])
    if path == "/" or path.endswith(".slice"):
        return Place("process", str(member.pid), None, path)
    return Place("cgroup", path, None, path)


def container_names(host: Host) -> dict[str, str]:
    """The names that Docker gave to its containers, by id; empty where it cannot be asked."""
    try:
        containers = host.docker_containers()
    except Unknown:
        return {}
    return {
        number: str(inspect.get("Name", "")).removeprefix("/") or number[:12] for number, inspect in containers.items()
    }


def _path(cgroups: Mapping[str, str]) -> str:
    """The v2 cgroup, or on a hybrid host whose v2 tree is not used, that of the devices controller or of systemd."""
    for hierarchy in ("", "devices", "name=systemd"):
        path = cgroups.get(hierarchy, "/")
        if path != "/":
            return path
    return "/"
