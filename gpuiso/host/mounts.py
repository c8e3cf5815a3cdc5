# SPDX-License-Identifier: Apache-2.0
"""Mounts as a process sees them, from /proc/PID/mountinfo (proc_pid_mountinfo(5))."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from gpuiso.errors import NotFound
from gpuiso.host.decimals import decimal
from gpuiso.host.protocol import Host

__all__ = ["Mount", "covering_mount", "mount_of_id", "mounts"]

_ESCAPE = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """One line. ``root`` is the part of the file system that is mounted, ``options`` the per-mount options.

    ``id`` and ``parent`` name mounts, ``device`` (major:minor) the file system.
    """

    id: int
    parent: int
    device: str
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
                decimal(fields[0]) or 0,
                decimal(fields[1]) or 0,
                fields[2],
                _plain(fields[3]),
                _plain(fields[4]),
                frozenset(fields[5].split(",")),
                tail[0],
                _plain(tail[1]),
                frozenset(tail[2].split(",")) if len(tail) > 2 else frozenset(),
            )
        )
    return tuple(found)


def mount_of_id(table: tuple[Mount, ...], number: int) -> Mount | None:
    """The mount of that id, None if the table does not show it: it lies outside of the process's root."""
    return next((mount for mount in table if mount.id == number), None)


def covering_mount(table: tuple[Mount, ...], path: str) -> Mount | None:
    """The mount that a path (links already resolved) lies on, as a walk from the root meets it.

    What another mount hides is not met. A table without a tree in it (written by hand) gives the longest mount point,
    the last one of equals.
    """
    ids = {mount.id for mount in table}
    met = [mount for mount in table if _covers(mount, path)]
    tops = [mount for mount in met if mount.parent not in ids or mount.parent == mount.id]
    if len(tops) > 1 and any(mount.point == "/" for mount in tops):
        return max(reversed(met), key=lambda mount: len(mount.point.rstrip("/")))
    at = _nearest(tops)
    while at is not None:
        here = at
        below = _nearest([m for m in met if m.parent == here.id != m.id and len(m.point) >= len(here.point)])
        if below is None:
            return at
        met.remove(at)  # a table that goes in circles ends
        at = below
    return None


def _covers(mount: Mount, path: str) -> bool:
    return path == mount.point or path.startswith(mount.point.rstrip("/") + "/")


def _nearest(found: list[Mount]) -> Mount | None:
    """The one that a walk meets first: the shortest mount point, of equals the last one mounted."""
    return min(reversed(found), key=lambda mount: len(mount.point), default=None)
