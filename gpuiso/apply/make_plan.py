# SPDX-License-Identifier: Apache-2.0
"""From a policy and a target to a plan."""

from __future__ import annotations

from dataclasses import replace

from gpuiso.apply.calls import Calls
from gpuiso.apply.gpu_limits import memory_as_files, share_steps
from gpuiso.apply.plan import Plan
from gpuiso.apply.plan_cgroup import plan_cgroup
from gpuiso.apply.plan_unit import plan_unit
from gpuiso.apply.target import Target
from gpuiso.errors import UsageError
from gpuiso.govern.registry import REGISTRY
from gpuiso.host.protocol import Host
from gpuiso.policy.resolve import ResolvedPolicy

__all__ = ["make_plan"]


def make_plan(
    host: Host,
    calls: Calls,
    target: Target,
    policy: ResolvedPolicy,
    *,
    file: str | None = None,
    narrower: bool = False,
    persistent: bool = False,
    registry: str = REGISTRY,
) -> Plan:
    """The plan for a cgroup of our own, or for the unit that owns it. Changes nothing.

    :raises NotSupported: a limit of the policy cannot be held here.
    :raises UsageError: ``persistent`` for what does not outlive the boot anyway.
    """
    policy = memory_as_files(host, policy)
    if target.unit is not None:
        plan = plan_unit(host, calls, target, policy, file=file, narrower=narrower, persistent=persistent)
    elif persistent:
        raise UsageError(f"{target.name} is no unit of systemd: a cgroup does not outlive the boot")
    else:
        plan = plan_cgroup(calls, target, policy, file=file, narrower=narrower)
    steps, notes = share_steps(target, policy, registry)
    return replace(plan, steps=(*plan.steps, *steps), notes=(*plan.notes, *notes))
