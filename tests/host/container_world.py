# SPDX-License-Identifier: Apache-2.0
"""Records of hosts with containers, in the layout that each engine leaves on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpuiso.host.cgroup_members import cgroup_members
from gpuiso.host.containers import Containers, find_containers
from gpuiso.host.recorded import RecordedHost
from tests.host.records import host as recorded
from tests.host.records import link

__all__ = ["A", "B", "C", "World"]

A, B, C = "a" * 64, "ab" * 32, "c0ffee" + "0" * 58
START = 4242  # clock ticks after boot, of every process here


class World:
    """A record in the making: ``state`` puts an engine's file there, ``process`` a process."""

    def __init__(self, base: Path) -> None:
        self._base = base
        self._files: dict[str, Any] = {}
        self._nodes: list[dict[str, Any]] = []
        self._dates: dict[str, dict[str, Any]] = {}
        self.process(1, "/init.scope", start=1)

    def state(self, path: str, content: Any) -> None:
        self._files[f"root{path}"] = content

    def written(self, path: str, when: float) -> None:
        """The ctime of a file, in seconds since the epoch."""
        self._dates[path] = {"path": path, "type": "f", "ctime": when}

    def absent(self, *paths: str) -> None:
        self._files["absent.json"] = list(paths)

    def docker(self, content: Any) -> None:
        self._files["tools/docker.json"] = content

    def process(
        self,
        pid: int,
        cgroup: str,
        *,
        start: int = START,
        inner: int | None = None,
        user_ns: str = "user:[1]",
        v1: str = "",
    ) -> None:
        numbers = f"{pid}" if inner is None else f"{pid}\t{inner}"
        self.state(f"/proc/{pid}/stat", f"{pid} (sleep) S 1 {' '.join(['0'] * 17)} {start} 0 0\n")
        self.state(f"/proc/{pid}/cgroup", f"{v1}0::{cgroup}\n")
        self.state(
            f"/proc/{pid}/status",
            "Name:\tsleep\nState:\tS\nPPid:\t1\nUid:\t0 0 0 0\nGid:\t0 0 0 0\nCapEff:\t0\n" + f"NSpid:\t{numbers}\n",
        )
        self._nodes.append(link(f"/proc/{pid}/ns/user", user_ns))

    def host(self) -> RecordedHost:
        return recorded(self._base, self._files, [*self._nodes, *self._dates.values()])

    def containers(self) -> Containers:
        host = self.host()
        return find_containers(host, cgroup_members(host))
