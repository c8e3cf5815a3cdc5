# SPDX-License-Identifier: Apache-2.0
"""A process and everything it started."""

from __future__ import annotations

from gpuiso.errors import NotFound, Unknown
from gpuiso.host.process import status
from gpuiso.host.protocol import Host

__all__ = ["descendants"]


def descendants(host: Host, root: int) -> frozenset[int]:
    """``root`` and all below it that have not ended, at one moment as far as /proc can show one.

    A process whose parent ended meanwhile belongs to its reaper: who needs all of a tree that forks scans again.
    """
    children: dict[int, list[int]] = {}
    for pid in host.pids():
        try:
            found = status(host, pid)
        except (NotFound, Unknown):
            continue
        if found.state not in "ZX":
            children.setdefault(found.ppid, []).append(pid)
    whole: set[int] = set()
    left = [root]
    while left:
        pid = left.pop()
        if pid not in whole:
            whole.add(pid)
            left += children.get(pid, [])
    return frozenset(whole)
