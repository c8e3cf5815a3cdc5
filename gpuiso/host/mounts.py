# SPDX-License-Identifier: Apache-2.0
"""Mounts as a process sees them, from /proc/PID/mountinfo (proc_pid_mountinfo(5))."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from gpuiso.errors import NotFound
from gpuiso.host.protocol import Host

__all__ = ["Mount", "covering_mount", "mounts"]

_ESCAPE = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """One line. ``root`` is the part of the file system that is mounted, ``options`` the per-mount options."""

    root: str
    point: str
    options: frozenset[str]
    fstype: str
    source: str
    super_options: frozenset[str]


def _plain(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)


def mounts(host: Host, pid: int | str) -> tuple[Mount, ...]:
    """All mounts in the process's namespace, in the order of the kernel's list. ``pid`` may be ``self``.

    :raises NotFound: no such process.
    :raises Unknown: not readable or not recorded.
    """
    text = host.text(f"/proc/{pid}/mountinfo")
    if text is None:
        raise NotFound(f"no process {pid} on {host.name}")
    return _table(text)


@lru_cache(maxsize=16)  # who asks for one process asks many times, and the processes of a host share their tables
def _table(text: str) -> tuple[Mount, ...]:
    found = []
    for line in text.splitlines():
        fields = line.split(" ")
        if "-" not in fields[6:]:
            continue  # not a line of mountinfo
        tail = fields[fields.index("-", 6) + 1 :]
        found.append(
            Mount(
                _plain(fields[3]),
                _plain(fields[4]),
                frozenset(fields[5].split(",")),
                tail[0],
                _plain(tail[1]),
                frozenset(tail[2].split(",")) if len(tail) > 2 else frozenset(),
            )
        )
    return tuple(found)


def covering_mount(table: tuple[Mount, ...], path: str) -> Mount | None:
    """The mount that a path (links already resolved) lies on: the longest mount point, the last one of equals."""
    best: Mount | None = None
    for mount in table:
        point = mount.point.rstrip("/")
        inside = path == mount.point or path.startswith(point + "/")
        if inside and (best is None or len(point) >= len(best.point.rstrip("/"))):
            best = mount
    return best
