# SPDX-License-Identifier: Apache-2.0
"""Gather a process and all that descend from it in a cgroup, none left behind.

A process that was moved has its further children in the new cgroup, so only those that it had forked before are to be
found: the processes are read again until a whole pass finds none outside. A child whose parent ended is nobody's
descendant any more; it is known by its session or process group, and the cgroup that it is in.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuiso.apply.calls import Calls
from gpuiso.apply.steps.base import StepFailed
from gpuiso.host.process_tree import Process, descendants, read_cgroup, read_processes

__all__ = ["Root", "gather", "inside", "record_tree", "send_back"]

_PASSES = 200
"""Passes that find somebody before it is given up: only a tree that forks faster than it can be read needs so many."""


@dataclass(frozen=True)
class Root:
    """A process by its number and its start (clock ticks after boot)."""

    pid: int
    start: int

    def tree(self, processes: Mapping[int, Process]) -> list[Process]:
        """It and its descendants, parents first; empty if it ended."""
        root = processes.get(self.pid)
        return descendants(processes, self.pid) if root is not None and root.start == self.start else []


def record_tree(root: Root) -> list[list[Any]]:
    """``[pid, start, cgroup]`` of each. :raises StepFailed: the root ended."""
    tree = root.tree(read_processes())
    if not tree:
        raise StepFailed(f"process {root.pid} ended")
    return [[process.pid, process.start, read_cgroup(process.pid)] for process in tree]


def gather(root: Root, tasks: Sequence[Sequence[Any]], cgroup: str, move: Callable[[Sequence[Process]], None]) -> None:
    """Have ``move`` bring everybody into ``cgroup``; ``tasks`` are from record_tree.

    :raises StepFailed: they fork faster than they can be moved.
    """
    family = _Family(root, tasks)
    for _ in range(_PASSES):
        outside = [process for process in family.members() if not _is_inside(process, cgroup)]
        if not outside:
            return
        move(outside)
    raise StepFailed(f"the tree of process {root.pid} forks faster than it can be moved ({_PASSES} passes)")


def send_back(calls: Calls, mount: str, cgroup: str, tasks: Sequence[Sequence[Any]]) -> int:
    """Whoever is in ``cgroup`` goes where it came from, children born there where the root came from.

    Returns how many were moved.
    """
    sources = {(pid, start): place for pid, start, place in tasks}
    moved = 0
    for _ in range(_PASSES):
        try:
            with calls.cgroup(mount, cgroup) as directory:
                pids = [int(word) for word in calls.read(directory, "cgroup.procs").split()]
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENODEV):  # the latter where it goes between the two calls
                return moved
            raise
        processes = read_processes()
        homes = {}
        for pid in pids:
            start = processes[pid].start if pid in processes else -1
            homes[pid] = sources.get((pid, start)) or tasks[0][2]
        homes = {pid: home for pid, home in homes.items() if home is not None and not inside(home, cgroup)}
        if not homes:
            return moved
        for pid, home in homes.items():
            moved += _send(calls, mount, home, pid)
    return moved


def _send(calls: Calls, mount: str, home: str, pid: int) -> int:
    try:
        with calls.cgroup(mount, home) as directory:
            calls.write(directory, "cgroup.procs", str(pid))
    except ProcessLookupError:
        return 0  # it ended
    return 1


def inside(place: str, cgroup: str) -> bool:
    """Whether a cgroup is another one, or below it."""
    return place == cgroup or place.startswith(cgroup.rstrip("/") + "/")


def _is_inside(process: Process, cgroup: str) -> bool:
    """An ended process counts as inside: there is nothing to move."""
    place = read_cgroup(process.pid)
    return place is None or inside(place, cgroup)


class _Family:
    """The tree as it is known so far, with those whose parents ended.

    Whoever is in a session that a member began descends from that member: a session is left by forking a new one, and
    never joined. A process group may be joined from within the session, so there only orphans count that are younger
    than what was seen first.
    """

    def __init__(self, root: Root, tasks: Sequence[Sequence[Any]]) -> None:
        self._root = root
        self._members = {(pid, start) for pid, start, _ in tasks}
        self._homes = {place for _, _, place in tasks if place is not None}
        self._since = max(start for _, start, _ in tasks)

    def members(self) -> Iterator[Process]:
        """All that live now, parents before children."""
        processes = read_processes()
        tree = self._root.tree(processes)
        known = {process.pid for process in tree}
        # Their numbers are not given out again while a session or group of that number has somebody in it.
        leaders = {pid for pid, _ in self._members} | known
        for process in processes.values():
            if process.pid not in known and self._belongs(process, processes, leaders):
                below = [entry for entry in descendants(processes, process.pid) if entry.pid not in known]
                known |= {entry.pid for entry in below}
                tree += below
        self._members |= {(process.pid, process.start) for process in tree}
        return iter(tree)

    def _belongs(self, process: Process, processes: Mapping[int, Process], leaders: set[int]) -> bool:
        if (process.pid, process.start) in self._members:
            return True
        if process.session not in leaders:
            parent = processes.get(process.ppid)
            orphan = process.ppid == 1 or parent is None or parent.session != process.session
            if not (orphan and process.pgrp in leaders and process.start >= self._since):
                return False
        return read_cgroup(process.pid) in self._homes
