# SPDX-License-Identifier: Apache-2.0
"""The loop: read what was used, decide, freeze or thaw, beat the guardian's heart.

When measuring stops (NVML hangs, its child dies) everything is thawed and stays so until samples come again: a limit
that cannot be measured is not held.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Sequence

from gpuiso.govern.cgroup import GovernedCgroup
from gpuiso.govern.guardian import SILENCE, Guardian
from gpuiso.host.nvml_usage import UsageReader, UsageSample

__all__ = ["Governor"]

TICK = 0.005  # seconds; a tenth of the shortest usual run
_DEAF = 1.0  # seconds without a sample after which nothing is held any more
_MEMBERS = 0.25  # seconds between looks at who is in a cgroup


class Governor:
    """Governs ``cgroups``. ``tell`` is called with a sentence when something changes for the user."""

    def __init__(
        self, cgroups: Sequence[GovernedCgroup], reader: UsageReader, tell: Callable[[str], None] = lambda _: None
    ) -> None:
        self.cgroups = list(cgroups)
        self._reader = reader
        self._tell = tell
        self._members: dict[int, GovernedCgroup] = {}
        self._looked = 0.0
        self._deaf = False
        self.stopped = False
        self._ticked = time.monotonic()
        self._guardian = Guardian([cgroup.freeze_file for cgroup in cgroups])

    def stop(self) -> None:
        """Ends :meth:`run` at its next tick (``stopped`` is set); safe in a signal handler."""
        self.stopped = True

    def used(self) -> dict[str, float]:
        """Seconds of GPU time that each cgroup has used since it is governed."""
        return {cgroup.path: cgroup.used for cgroup in self.cgroups}

    def govern(self, cgroups: Sequence[GovernedCgroup]) -> None:
        """Governs these from now on; those that are not among them any more are thawed."""
        for cgroup in self.cgroups:
            if cgroup not in cgroups:
                cgroup.close()
        self.cgroups = list(cgroups)
        self._guardian.close()
        self._guardian = Guardian([cgroup.freeze_file for cgroup in cgroups])
        self._looked = 0.0

    def run(self, seconds: float | None = None) -> None:
        """Until stopped, until all cgroups are gone, or for ``seconds``. Thaws everything in the end."""
        end = None if seconds is None else time.monotonic() + seconds
        try:
            while not self.stopped and self.cgroups and (end is None or time.monotonic() < end):
                self.tick()
        finally:
            self.close()

    def tick(self) -> None:
        """One turn of the loop."""
        select.select([self._reader], [], [], TICK)
        now = time.monotonic()
        if now - self._ticked > SILENCE / 2:
            # We were stopped, or the machine slept: the guardian may have thawed what we think is frozen.
            for cgroup in self.cgroups:
                cgroup.thaw()
        self._ticked = now
        self._guardian.beat()
        if now - self._looked > _MEMBERS:
            self._look(now)
        for cgroup in self.cgroups:
            cgroup.controller.advance(now)
        self._book(self._reader.read(), now)
        if self._reader.silent(_DEAF):
            self._go_deaf()
            return
        if self._deaf:
            self._deaf = False
            self._tell("NVML answers again: the limits are held")
        for cgroup in self.cgroups:
            cgroup.step(now)

    def _look(self, now: float) -> None:
        self._looked = now
        for cgroup in [cgroup for cgroup in self.cgroups if not cgroup.alive]:
            self._tell(f"{cgroup.path} is gone")
            cgroup.close()
            self.cgroups.remove(cgroup)
        self._members = {pid: cgroup for cgroup in self.cgroups for pid in cgroup.pids()}

    def _book(self, samples: Sequence[UsageSample], now: float) -> None:
        by_cgroup: dict[int, list[UsageSample]] = {}
        for sample in samples:
            cgroup = self._members.get(sample.pid)
            if cgroup is not None:
                by_cgroup.setdefault(id(cgroup), []).append(sample)
        for cgroup in self.cgroups:
            cgroup.account(by_cgroup.get(id(cgroup), ()), now)

    def _go_deaf(self) -> None:
        for cgroup in self.cgroups:
            if cgroup.frozen:
                cgroup.thaw()
        if not self._deaf:
            self._deaf = True
            self._tell("NVML does not answer: nothing is held until it does")
        self._reader.restart()

    def close(self) -> None:
        """Thaws and ends the children."""
        for cgroup in self.cgroups:
            cgroup.close()
        self.cgroups = []
        self._guardian.close()
        self._reader.close()
