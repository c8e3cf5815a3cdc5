# SPDX-License-Identifier: Apache-2.0
"""A cgroup to apply policies to, and the short way there."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from gpuiso.apply.calls import Calls
from gpuiso.apply.engine import Outcome, carry_out
from gpuiso.apply.plan import Plan
from gpuiso.apply.plan_cgroup import plan_cgroup
from gpuiso.apply.state import State
from gpuiso.apply.target import find_cgroup
from gpuiso.host.live import LiveHost
from gpuiso.policy.document import parse_policy
from gpuiso.policy.resolve import ResolvedPolicy, resolve
from tests.tiers import cgroup2_mount

__all__ = ["World", "policy"]


def policy(text: str) -> ResolvedPolicy:
    """A policy of this host."""
    return resolve(parse_policy(text), LiveHost())


@dataclass(frozen=True)
class World:
    """``top`` is a cgroup directory of the test's own, ``run`` stands for /run/gpuiso."""

    top: Path
    run: Path
    calls: Calls = field(default_factory=Calls)

    @property
    def state(self) -> State:
        return State(self.run)

    def name(self, *below: str) -> str:
        """A cgroup as the command line takes it."""
        mount = cgroup2_mount()
        assert mount is not None
        return "/" + "/".join([str(self.top.relative_to(mount)), *below])

    def plan(self, wanted: ResolvedPolicy, *below: str, calls: Calls | None = None) -> Plan:
        made = calls or self.calls
        target = find_cgroup(LiveHost(), made, self.name(*below), create=True)
        return plan_cgroup(made, target, wanted)

    def apply(self, wanted: ResolvedPolicy, *below: str, calls: Calls | None = None) -> Outcome:
        return carry_out(self.plan(wanted, *below, calls=calls), state=self.state, calls=calls or self.calls)
