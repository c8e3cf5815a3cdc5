# SPDX-License-Identifier: Apache-2.0
"""What the registry asks for is what is governed: also after a change, and after a cgroup went and came again."""

from __future__ import annotations

import os
from collections.abc import Callable

from gpuiso.errors import NotFound
from gpuiso.govern.cgroup import GovernedCgroup
from gpuiso.govern.governor import Governor
from gpuiso.govern.hold import HOLDS
from gpuiso.govern.registry import REGISTRY, registered
from gpuiso.policy.limits import GpuMax

__all__ = ["Follower"]


class Follower:
    """``tell`` is told which cgroup is held from now on."""

    def __init__(
        self,
        governor: Governor,
        mount: str,
        tell: Callable[[str], None],
        *,
        registry: str = REGISTRY,
        holds: str = HOLDS,
    ) -> None:
        self._governor = governor
        self._mount = mount
        self._tell = tell
        self._registry = registry
        self._holds = holds
        self._known: dict[str, GovernedCgroup] = {}

    def look(self) -> None:
        """Takes up what has changed since the last time."""
        wanted = {
            path: share
            for path, share in registered(self._registry).items()
            if share.quota is not None and os.path.isdir(self._mount + path)
        }
        if {path: cgroup.share for path, cgroup in self._known.items() if cgroup.alive} != wanted:
            self._known = self._renewed(wanted)
            self._governor.govern(list(self._known.values()))

    def _renewed(self, wanted: dict[str, GpuMax]) -> dict[str, GovernedCgroup]:
        found = {
            path: cgroup for path, cgroup in self._known.items() if cgroup.alive and wanted.get(path) == cgroup.share
        }
        for path, share in wanted.items():
            if path in found:
                continue
            try:
                found[path] = GovernedCgroup(self._mount, path, share, holds=self._holds)
                self._tell(f"{path}: holding {share}")
            except NotFound:
                continue  # a unit that is restarted: it has its cgroup again in a moment
        return found
