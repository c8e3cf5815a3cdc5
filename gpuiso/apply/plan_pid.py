# SPDX-License-Identifier: Apache-2.0
"""The plan for a running process and its descendants: a cgroup of their own, below the one they are in.

Below, because then all that limited them before still does. The rules are attached before anybody is moved.
"""

from __future__ import annotations

from dataclasses import replace

from gpuiso.apply.calls import Calls
from gpuiso.apply.make_plan import make_plan
from gpuiso.apply.ownership import owned
from gpuiso.apply.plan import Plan
from gpuiso.apply.plan_unit import plan_new_scope
from gpuiso.apply.steps import MoveTree, StartScope, Step
from gpuiso.apply.target import Place, Target, find_cgroup
from gpuiso.errors import NotSupported
from gpuiso.host import process
from gpuiso.host.cgroup_mounts import cgroup_mount
from gpuiso.host.protocol import Host
from gpuiso.policy.resolve import ResolvedPolicy

__all__ = ["pid_target", "plan_pid"]

_PREFIX = "gpuiso-"


def pid_target(host: Host, calls: Calls, pid: int) -> Target:
    """The cgroup that ``plan_pid`` gives a process: the one it is in if that was made for it, else a new one.

    :raises NotFound: no such process. :raises NotSupported: PID 1, a kernel thread, or no cgroup2 tree.
    """
    process.require(host, pid)
    if pid == 1 or _is_kernel_thread(host, pid):
        what = "the init process" if pid == 1 else "a kernel thread"
        raise NotSupported(f"process {pid} is {what}: it stays where it is")
    now, mount = process.unified_cgroup(host, pid), cgroup_mount(host, "")
    if now is None or mount is None:
        raise NotSupported("moving a tree needs cgroup v2", hint="apply the rules to its cgroup with --cgroup")
    name = f"{_PREFIX}{pid}-{process.start_time(host, pid)}"
    last = now.rpartition("/")[2]
    if last in (name, f"{name}.scope"):
        return owned(host, calls, replace(find_cgroup(host, calls, now), v1=None))
    unit = calls.unit_by_cgroup(now) if host.systemd else None
    if unit is None or calls.unit_properties(unit).get("Delegate"):
        below = find_cgroup(host, calls, f"{now.rstrip('/')}/{name}", create=True)
        return owned(host, calls, replace(below, v1=None))
    home = str(calls.unit_properties(_slice_of(calls, unit)).get("ControlGroup") or "/")
    place = Place(mount, f"{home.rstrip('/')}/{name}.scope", exists=False)
    return Target(f"unit {name}.scope", place, unit=f"{name}.scope")


def _slice_of(calls: Calls, unit: str) -> str:
    return str(calls.unit_properties(unit).get("Slice") or "-.slice")


def _is_kernel_thread(host: Host, pid: int) -> bool:
    return not host.text(f"/proc/{pid}/cmdline") and host.readlink(f"/proc/{pid}/exe") is None


def plan_pid(
    host: Host, calls: Calls, pid: int, policy: ResolvedPolicy, *, file: str | None = None, narrower: bool = False
) -> Plan:
    """:raises NotFound: no such process. :raises NotSupported: as for a cgroup or a unit."""
    target = pid_target(host, calls, pid)
    place = target.v2
    if place is None or (target.unit is not None and place.exists):
        return make_plan(host, calls, target, policy, file=file, narrower=narrower)
    start = process.start_time(host, pid)
    if target.unit is None:
        plan = make_plan(host, calls, target, policy, file=file, narrower=narrower)
        move: Step = MoveTree(place.mount, place.cgroup, pid, start)
        return replace(plan, steps=(*plan.steps, move))
    plan, properties = plan_new_scope(target, policy, file=file, narrower=narrower)
    now = process.unified_cgroup(host, pid) or "/"
    slice_unit = _slice_of(calls, calls.unit_by_cgroup(now) or "-.slice")
    scope = StartScope(target.unit, slice_unit, place.mount, place.cgroup, pid, start, properties)
    return replace(plan, steps=(scope,))
