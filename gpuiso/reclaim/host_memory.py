# SPDX-License-Identifier: Apache-2.0
"""Whether host memory can take the copy of a process's GPU memory.

The driver allocates the copy inside the process: it is charged to the process's memory cgroup and all its ancestors,
and a limit met half-way makes the kernel kill the process. So all of them are looked at before anything is done.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpuiso.errors import NotFound, Unknown
from gpuiso.host.cgroup_mounts import cgroup_mount
from gpuiso.host.process import cgroups
from gpuiso.host.protocol import Host

__all__ = ["Room", "rooms"]

_UNLIMITED = 1 << 62  # v1 shows "no limit" as the largest multiple of a page below 2^63


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes that one level can still take. ``where`` is the file that limits it."""

    where: str
    free: int


def rooms(host: Host, pid: int) -> Iterator[Room]:
    """The machine's room, then that of each memory cgroup above a process that has a limit.

    Page cache counts as free: the kernel drops it before it kills. :raises Unknown: the host does not tell.
    """
    yield Room("/proc/meminfo (MemAvailable)", _available(host))
    places = cgroups(host, pid)
    if "memory" in places:
        yield from _levels(host, places["memory"], "memory", "memory.limit_in_bytes", "memory.usage_in_bytes")
    elif "" in places:
        yield from _levels(host, places[""], "", "memory.max", "memory.current")


def _available(host: Host) -> int:
    for line in (host.text("/proc/meminfo") or "").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) << 10
    raise Unknown("/proc/meminfo", "it has no line MemAvailable")


def _levels(host: Host, path: str, controller: str, limit_file: str, usage_file: str) -> Iterator[Room]:
    mount = cgroup_mount(host, controller)
    if mount is None:
        return
    parts = [part for part in path.split("/") if part]
    for end in range(len(parts), -1, -1):
        directory = "/".join([mount, *parts[:end]])
        limit = _number(host.text(f"{directory}/{limit_file}"))
        if limit is None or limit >= _UNLIMITED:
            continue
        used = _number(host.text(f"{directory}/{usage_file}"))
        if used is None:
            raise Unknown(f"{directory}/{usage_file}", "it is not there, though a limit is")
        yield Room(f"{directory}/{limit_file}", limit - used + _page_cache(host, directory, controller))


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.strip().isdigit() else None


def _page_cache(host: Host, directory: str, controller: str) -> int:
    """Bytes of file pages, memory of tmpfs left out: that stays."""
    prefix = "total_" if controller else ""
    wanted = (f"{prefix}active_file", f"{prefix}inactive_file")
    try:
        lines = (host.text(f"{directory}/memory.stat") or "").splitlines()
    except (NotFound, Unknown):
        return 0
    fields = dict(line.split(None, 1) for line in lines if " " in line)
    return sum(int(fields[name]) for name in wanted if name in fields)
