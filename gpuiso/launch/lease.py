# SPDX-License-Identifier: Apache-2.0
"""A lease, a place in the queue, and the cgroup that a lease is bound to, as they are written to files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["CgroupId", "Lease", "Ticket"]


@dataclass(frozen=True)
class CgroupId:
    """A cgroup for good: its path below ``mount``, and what tells it from a later one of that path.

    On 64-bit kernels an inode number of cgroupfs is given out once in the life of a kernel (kernfs_new_node in
    fs/kernfs/dir.c counts a generation in its upper half), so with the boot it names the directory; 0 is one that is
    still to be made. Its times would not: they are made anew when the kernel forgets the inode. ``ours``: the launcher
    made it, so it may go with the lease; and so may ``made``, what it made above, as paths and inode numbers.
    """

    mount: str
    path: str
    inode: int
    boot: str
    unit: str | None = None
    ours: bool = False
    made: tuple[tuple[str, int], ...] = ()

    @property
    def directory(self) -> str:
        return f"{self.mount}{self.path}"


@dataclass(frozen=True)
class Ticket:
    """One who asked for GPUs. ``number`` counts arrivals; ``slots`` as in Request.

    ``most`` is how many GPUs the user may have at a time, None without a limit.
    """

    number: int
    pid: int
    user: int
    slots: tuple[tuple[str, ...], ...]
    share: bool
    most: int | None
    since: float
    text: str

    def as_text(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_text(text: str) -> Ticket:
        """:raises ValueError, KeyError, TypeError: it is no ticket."""
        found = json.loads(text)
        return Ticket(**{**found, "slots": tuple(tuple(slot) for slot in found["slots"])})


@dataclass(frozen=True)
class Lease:
    """``units`` are pairs of a unit's id and its GPU's.

    ``cgroup`` is None, or one that is still to be made, until the workload has one.

    ``granted`` is CLOCK_MONOTONIC in nanoseconds, ``taken`` seconds since the epoch.
    """

    id: str
    name: str
    units: tuple[tuple[str, str], ...]
    share: bool
    user: int
    user_name: str
    command: tuple[str, ...]
    pid: int
    taken: float
    granted: int
    cgroup: CgroupId | None = None
    gpu_max: str | None = None
    gpu_memory: str | None = None

    def as_text(self) -> str:
        return json.dumps({"format": "gpuiso-lease/1", **asdict(self)})

    @staticmethod
    def from_text(text: str) -> Lease:
        """:raises ValueError, KeyError, TypeError: it is no lease."""
        found: Mapping[str, Any] = json.loads(text)
        if found["format"] != "gpuiso-lease/1":
            raise ValueError(f"its format is {found['format']!r}")
        fields = {name: value for name, value in found.items() if name != "format"}
        fields["units"] = tuple((unit, gpu) for unit, gpu in found["units"])
        fields["command"] = tuple(found["command"])
        fields["cgroup"] = None if found["cgroup"] is None else _cgroup(found["cgroup"])
        return Lease(**fields)


def _cgroup(found: Mapping[str, Any]) -> CgroupId:
    return CgroupId(**{**found, "made": tuple((path, inode) for path, inode in found.get("made", ()))})
