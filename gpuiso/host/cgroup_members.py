# SPDX-License-Identifier: Apache-2.0
"""All processes by cgroup, from one pass over /proc/PID/cgroup."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuiso.errors import NotFound, Unknown
from gpuiso.host import process
from gpuiso.host.protocol import Host

__all__ = ["CgroupMembers", "cgroup_members", "places"]

#: Hierarchies in which a process may be placed by who started it: v2, then on hybrid and legacy hosts v1's.
_HIERARCHIES = ("", "devices", "name=systemd", "memory", "pids")


@dataclass(frozen=True, slots=True)
class CgroupMembers:
    """``places`` are the cgroups of each process, the v2 one first, without root cgroups and repetitions.

    ``unread`` are the processes whose cgroup is not known, ``why`` the first reason.
    """

    places: Mapping[int, tuple[str, ...]]
    unread: tuple[int, ...] = ()
    why: str | None = None
    _below: dict[str, list[int]] = field(default_factory=dict)

    def below(self, cgroup: str) -> tuple[int, ...]:
        """The processes in a cgroup and in those below it, ascending."""
        if cgroup == "/":
            return tuple(sorted(self.places))
        return tuple(self._index.get(cgroup.rstrip("/"), ()))

    @property
    def paths(self) -> tuple[str, ...]:
        """Every cgroup with a process in it or below it."""
        return tuple(self._index)

    @property
    def _index(self) -> dict[str, list[int]]:
        if not self._below:
            for pid in sorted(self.places):
                for path in {above for place in self.places[pid] for above in _with_parents(place)}:
                    self._below.setdefault(path, []).append(pid)
        return self._below


def _with_parents(path: str) -> list[str]:
    found = []
    while path:
        found.append(path)
        path = path.rpartition("/")[0]
    return found


def places(cgroups: Mapping[str, str]) -> tuple[str, ...]:
    """The cgroups of a process that say something, from what :func:`gpuiso.host.process.cgroups` gives."""
    found = (cgroups.get(hierarchy, "/") for hierarchy in _HIERARCHIES)
    return tuple(dict.fromkeys(path for path in found if path != "/"))


def cgroup_members(host: Host) -> CgroupMembers:
    """The cgroups of every process.

    :raises Unknown: the host does not tell which processes there are.
    """
    found: dict[int, tuple[str, ...]] = {}
    unread: list[int] = []
    why = None
    for pid in host.pids():
        try:
            found[pid] = places(process.cgroups(host, pid))
        except NotFound:
            continue  # it ended meanwhile
        except Unknown as error:
            unread.append(pid)
            why = why or error.why
    return CgroupMembers(found, tuple(unread), why)
