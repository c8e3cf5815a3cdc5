# SPDX-License-Identifier: Apache-2.0
"""Moving processes into a cgroup and back to where each of them came from."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from typing import Any

from gpuiso.apply.calls import Calls
from gpuiso.errors import GpuisoError, NotFound, NotSupported
from gpuiso.host.process import start_time, unified_cgroup
from gpuiso.host.protocol import Host
from gpuiso.reclaim.session import Memo

__all__ = ["move", "move_back", "move_members"]

_ROUNDS = 200
_STABLE = 2  # scans in a row that find nobody outside
_PAUSE = 0.002


def move(calls: Calls, mount: str, cgroup: str, pid: int) -> bool:
    """Moves one process with all its threads; returns False if it ended.

    :raises NotSupported: the kernel lets it not in, and why.
    """
    try:
        with calls.cgroup(mount, cgroup) as directory:
            calls.write(directory, "cgroup.procs", str(pid))
    except OSError as error:
        if error.errno == errno.ESRCH:
            return False
        why = {
            errno.EINVAL: "it is a kernel thread, or the kernel binds it to its cgroup",
            errno.EBUSY: "the cgroup has controllers enabled for its children",
            errno.EOPNOTSUPP: "the cgroup is threaded",
            errno.EACCES: "not permitted to write to it or to the cgroup above both",
        }.get(error.errno or 0, os.strerror(error.errno or 0))
        raise NotSupported(f"process {pid} cannot be moved into {cgroup}: {why}") from error
    return True


def move_members(
    host: Host,
    calls: Calls,
    memo: dict[str, Any],
    remember: Callable[[Memo], None],
    members: Callable[[], frozenset[int]],
) -> None:
    """Moves everybody into the memo's cgroup, and looks again until nobody is outside any more.

    What is moved starts its children inside, so each round has fewer left. The places they came from are remembered
    before they are left.

    :raises GpuisoError: some are still outside after many rounds.
    """
    stable = 0
    for _ in range(_ROUNDS):
        outside = []
        for pid in sorted(members()):
            try:
                place = unified_cgroup(host, pid)
                if place == memo["cgroup"]:
                    continue
                memo["places"][str(pid)] = [start_time(host, pid), place]
            except NotFound:
                continue
            outside.append(pid)
        if not outside:
            stable += 1
            if stable == _STABLE:
                return
            time.sleep(_PAUSE)
            continue
        stable = 0
        remember(memo)
        for pid in outside:
            move(calls, memo["mount"], memo["cgroup"], pid)
    raise GpuisoError(f"processes are still started outside {memo['cgroup']} after {_ROUNDS} rounds")


def move_back(host: Host, calls: Calls, memo: Memo) -> list[str]:
    """Moves all that is in the memo's cgroup to where it came from, and what was started there to the origin.

    A cgroup that was removed meanwhile is stood in for by the nearest one above it that is left; returns that as
    sentences, with the count of what was moved.

    :raises GpuisoError: some could not be moved.
    """
    moved = 0
    said: set[str] = set()
    for _ in range(_ROUNDS):
        with calls.cgroup(memo["mount"], memo["cgroup"]) as directory:
            inside = [int(pid) for pid in calls.read(directory, "cgroup.procs").split()]
        if not inside:
            break
        for pid in inside:
            wanted = _place_of(host, memo, pid)
            place = _existing(memo["mount"], wanted)
            if place != wanted:
                said.add(f"{wanted} is gone: what came from there went to {place}")
            moved += move(calls, memo["mount"], place, pid)
    else:
        raise GpuisoError(f"processes are still started in {memo['cgroup']} after {_ROUNDS} rounds")
    return [f"moved {moved} processes back", *sorted(said)] if moved else []


def _place_of(host: Host, memo: Memo, pid: int) -> str:
    entry = memo["places"].get(str(pid))
    try:
        if entry is not None and entry[0] == start_time(host, pid):
            return str(entry[1])
    except NotFound:
        pass
    return str(memo["origin"])


def _existing(mount: str, cgroup: str) -> str:
    while cgroup != "/" and not os.path.isdir(f"{mount}{cgroup}"):
        cgroup = cgroup.rpartition("/")[0] or "/"
    return cgroup
