# SPDX-License-Identifier: Apache-2.0
"""All processes of the running machine at a glance: parents, sessions and start times (proc_pid_stat(5))."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Process", "descendants", "read_cgroup", "read_processes"]


@dataclass(frozen=True, slots=True)
class Process:
    """``start`` is in clock ticks after boot: with the pid, it names a process for good."""

    pid: int
    state: str
    ppid: int
    pgrp: int
    session: int
    start: int


def read_processes() -> dict[int, Process]:
    """Every process by pid. One that ends meanwhile may be there or not; zombies are not."""
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        process = _read(int(name))
        if process is not None and process.state not in ("Z", "X"):
            found[process.pid] = process
    return found


def _read(pid: int) -> Process | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rindex(b")") + 2 :].split()
    return Process(
        pid,
        fields[0].decode(),
        int(fields[1]),
        int(fields[2]),
        int(fields[3]),
        int(fields[19]),
    )


def descendants(processes: Mapping[int, Process], root: int) -> list[Process]:
    """The process ``root`` and all below it, parents before children; empty if it is not there."""
    children: dict[int, list[int]] = defaultdict(list)
    for process in processes.values():
        children[process.ppid].append(process.pid)
    found = [processes[root]] if root in processes else []
    for process in found:  # grows while it is gone through
        found += [processes[pid] for pid in children[process.pid]]
    return found


def read_cgroup(pid: int, controller: str = "") -> str | None:
    """The cgroup of a process in one hierarchy (the v2 tree by default), None if it ended or is in none."""
    try:
        with open(f"/proc/{pid}/cgroup", encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path
    return None
