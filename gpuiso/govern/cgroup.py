# SPDX-License-Identifier: Apache-2.0
"""A governed cgroup: its members, its freeze file, its account."""

from __future__ import annotations

import os
from collections.abc import Iterable

from gpuiso.errors import NotFound, NotPermitted, NotSupported
from gpuiso.govern.controller import Controller
from gpuiso.govern.hold import HOLDS, FreezeLock
from gpuiso.host.nvml_usage import UsageSample
from gpuiso.policy.limits import GpuMax

__all__ = ["GovernedCgroup"]


SHORTEST_PERIOD = 20_000  # µs; a freeze and a thaw take about a millisecond together
SMALLEST_SHARE = 0.01
_QUIET = 0.5  # seconds without a sample after which a cgroup uses nothing: it has no CUDA context


class GovernedCgroup:
    """``path`` is below the root of the v2 tree, which is mounted on ``mount``.

    :raises NotFound: no such cgroup.
    :raises NotPermitted: its cgroup.freeze cannot be written.
    :raises NotSupported: it is the root, the share is too fine to be held by freezing, or this kernel has no
        cgroup.freeze (before v5.2).
    """

    def __init__(self, mount: str, path: str, share: GpuMax, *, holds: str = HOLDS) -> None:
        if share.quota is None:
            raise NotSupported(f"{path}: gpu.max is max: there is nothing to govern")
        if share.period < SHORTEST_PERIOD or share.share < SMALLEST_SHARE:
            raise NotSupported(
                f"{path}: gpu.max {share} cannot be held by freezing: the period must be at least {SHORTEST_PERIOD} µs"
                f" and the quota at least {SMALLEST_SHARE:.0%} of it"
            )
        self.path = path
        self.share = share
        self.directory = f"{mount}{path.rstrip('/')}"
        self.freeze_file = f"{self.directory}/cgroup.freeze"
        if path.strip("/") == "":
            raise NotSupported("the root cgroup cannot be frozen")
        if not os.path.isdir(self.directory):
            raise NotFound(f"no cgroup {path}")
        try:
            self._freeze = os.open(self.freeze_file, os.O_WRONLY | os.O_CLOEXEC)
        except PermissionError as error:
            raise NotPermitted(
                f"{self.freeze_file}: no permission to write it (root, or a delegated cgroup)"
            ) from error
        except FileNotFoundError as error:
            raise NotSupported(f"{path}: this kernel has no cgroup.freeze") from error
        self._identity = os.fstat(self._freeze)
        self._lock = FreezeLock(path, holds)
        self.controller = Controller(share.share, share.period / 1e6)
        self.used = 0.0
        self._booked = 0.0
        self._last: dict[tuple[int, int], float] = {}
        self.frozen = False

    @property
    def alive(self) -> bool:
        """Whether the cgroup still exists, and is not a later one of the same path (a unit that was restarted)."""
        try:
            return os.path.samestat(self._identity, os.stat(self.freeze_file))
        except OSError:
            return False

    def pids(self) -> set[int]:
        """All processes in it and below it."""
        found: set[int] = set()
        for directory, _, names in os.walk(self.directory):
            if "cgroup.procs" in names:
                try:
                    with open(f"{directory}/cgroup.procs") as file:
                        found.update(map(int, file.read().split()))
                except OSError:
                    continue  # removed meanwhile, or threaded: its processes are listed above
        return found

    def account(self, samples: Iterable[UsageSample], now: float) -> None:
        """Books the samples of this cgroup's processes, and time without any as unused."""
        by_gpu: dict[int, float] = {}
        until = 0.0
        for sample in sorted(samples, key=lambda sample: sample.until):
            key = (sample.gpu, sample.pid)
            since = self._last.get(key, sample.until - 0.2)
            self._last[key] = sample.until
            used = sample.percent / 100 * min(sample.until - since, 1.0)
            by_gpu[sample.gpu] = by_gpu.get(sample.gpu, 0.0) + used
            until = max(until, sample.until)
        if not until and now - self._booked < _QUIET:
            return
        self._booked = until or now - _QUIET / 2
        # A freeze stops the work on all GPUs at once, so the busiest one decides.
        busiest = max(by_gpu.values(), default=0.0)
        self.used += busiest
        self.controller.measured(self._booked, busiest)

    def step(self, now: float) -> None:
        """Freezes or thaws as the account wants it."""
        self.controller.advance(now)
        wanted = self.controller.decide()
        if wanted and not self.frozen:
            # A hold (a checkpoint in progress) wins: the share is then overdrawn, and paid back afterwards.
            if self._lock.take():
                self._write(b"1")
                self.frozen = True
            else:
                self.controller.frozen = False
        elif not wanted and self.frozen:
            self.thaw()

    def thaw(self) -> None:
        """Thaws it whatever the account says."""
        self._write(b"0")
        self._lock.give_back()
        self.frozen = self.controller.frozen = False

    def _write(self, word: bytes) -> None:
        try:
            os.pwrite(self._freeze, word, 0)
        except OSError:
            if self.alive:
                raise

    def close(self) -> None:
        """Thaws and lets go."""
        self.thaw()
        os.close(self._freeze)
