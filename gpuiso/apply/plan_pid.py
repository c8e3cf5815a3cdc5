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
from gpuiso.apply.target import Place, Target, find_cgroup, levels
from gpuiso.errors import NotSupported
from gpuiso.host import process
from gpuiso.host.cgroup_mounts import cgroup_mount
from gpuiso.host.protocol import Host
from gpuiso.policy.resolve import ResolvedPolicy

__all__ = ["made_for", "pid_target", "plan_pid"]

_PREFIX = "gpuiso-"


def made_for(host: Host, pid: int, cgroup: str) -> str | None:
    """The cgroup that was made for a process, if ``cgroup`` is that or below it: it may have made one of its own.

    :raises NotFound: no such process.
    """
    name = f"{_PREFIX}{pid}-{process.start_time(host, pid)}"
    own = (path for path in levels(cgroup) if path.rpartition("/")[2] in (name, f"{name}.scope"))
    return max(own, key=len, default=None)


def pid_target(host: Host, calls: Calls, pid: int) -> Target:
    """The cgroup that ``plan_pid`` gives a process: the one that was made for it if it is in there, else a new one.

    :raises NotFound: no such process. :raises NotSupported: PID 1, a kernel thread, or no cgroup2 tree.
    """
    process.require(host, pid)
    if pid == 1 or _is_kernel_thread(host, pid):
        what = "the init process" if pid == 1 else "a kernel thread"
        raise NotSupported(f"process {pid} is {what}: it stays where it is")
    now, mount = process.unified_cgroup(host, pid), cgroup_mount(host, "")
    if now is None or mount is None:
        raise NotSupported("moving a tree needs cgroup v2", hint="apply the rules to its cgroup with --cgroup")
    if (own := made_for(host, pid, now)) is not None:
        return owned(host, calls, replace(find_cgroup(host, calls, own), v1=None))
    name = f"{_PREFIX}{pid}-{process.start_time(host, pid)}"
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
