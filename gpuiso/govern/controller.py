# SPDX-License-Identifier: Apache-2.0
"""The decision: run or freeze, from what was measured so far. Pure; times are seconds of one monotonic clock.

An account is credited with ``rate`` seconds of GPU time a second and debited with what the cgroup used. NVML tells the
use about 0.2 s late, in samples; until a sample comes, what was used since is predicted from the time the cgroup ran
and from how much it uses while it runs. Kernels that were queued before a freeze still run after it, and are debited
when they are seen: that is what an open loop gets wrong.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Controller"]

_BURST = 1.0  # seconds of credit that an idle cgroup may save
_DEBT = 2.0  # seconds of use that a sudden burst may owe; more would starve it for long
_LEARN = 0.3  # how fast the use while running is learned
_MOST = 16.0  # GPUs that one cgroup may keep busy
_SHORTEST = 0.010  # seconds; shorter freezes cost more than they hold back


@dataclass
class Controller:
    """``rate`` is the GPU time allowed a second (0.5 is half a GPU), ``period`` the length of a cycle in seconds."""

    rate: float
    period: float
    frozen: bool = False
    _now: float | None = None
    _credit: float = 0.0
    _seen: float | None = None
    _intensity: float | None = None
    """GPU time used a second of running; None until a sample tells."""
    _runs: list[tuple[float, float]] = field(default_factory=list)
    """Stretches in which the cgroup ran, those that no sample covers yet."""
    _changed: float = 0.0

    def advance(self, now: float) -> None:
        """Time passes. Call it before the cgroup is frozen or thawed, and before samples are given."""
        if self._now is None:
            self._now = self._changed = self._seen = now
            return
        step = now - self._now
        if not self.frozen and step > 0:
            if self._runs and self._runs[-1][1] == self._now:
                self._runs[-1] = (self._runs[-1][0], now)
            else:
                self._runs.append((self._now, now))
        self._credit = min(self._credit + self.rate * step, self.rate * _BURST)
        self._now = now

    def measured(self, until: float, used: float) -> None:
        """``used`` seconds of GPU time were used between the last sample's end and ``until``."""
        if self._seen is None or until <= self._seen:
            return
        ran = self._ran(self._seen, until)
        if ran > 0.3 * (until - self._seen) * min(1.0, self.rate):
            measured = min(used / ran, _MOST)
            known = measured if self._intensity is None else self._intensity
            self._intensity = known + _LEARN * (measured - known)
        self._credit = max(self._credit - used, -self.rate * _DEBT)
        self._seen = until
        self._runs = [(max(start, until), end) for start, end in self._runs if end > until]

    def _ran(self, start: float, end: float) -> float:
        return sum(max(0.0, min(end, e) - max(start, s)) for s, e in self._runs)

    @property
    def credit(self) -> float:
        """Seconds of GPU time the cgroup may still use now, by what was measured and predicted."""
        return self._credit - (self._intensity or 0.0) * sum(end - start for start, end in self._runs)

    def decide(self) -> bool:
        """Whether the cgroup should be frozen from now on."""
        if self._now is None or self._intensity is None or self._intensity <= self.rate:
            return self._set(self.credit < 0)
        # Run and freeze together fill a period at this swing of the account around zero.
        swing = self.period * self.rate * (1 - self.rate / self._intensity) / 2
        if self._now - self._changed < _SHORTEST:
            return self.frozen
        if self.frozen:
            return self._set(self.credit < swing)
        return self._set(self.credit < -swing)

    def _set(self, frozen: bool) -> bool:
        if frozen != self.frozen:
            self.frozen = frozen
            self._changed = self._now or 0.0
        return frozen
