# SPDX-License-Identifier: Apache-2.0
"""A cgroup or systemd scope of its own for a process and all it started, in which the nodes of GPUs are denied.

:func:`gpuiso.apply.plan_pid.plan_pid` decides where: below the cgroup that the process is in where that is its owner's
to arrange (containers are delegated), else in a transient scope beside its unit. What undoes a step goes into the
process's own record before the step begins, since the two belong together: a gate is open or closed as the record says.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from gpuiso.apply.calls import Calls
from gpuiso.apply.make_plan import make_plan
from gpuiso.apply.plan import Plan
from gpuiso.apply.plan_pid import pid_target, plan_pid
from gpuiso.apply.state import State
from gpuiso.apply.steps import MoveTree, from_json
from gpuiso.apply.target import Place, find_cgroup
from gpuiso.apply.undo import undo_entries
from gpuiso.errors import GpuisoError, NotSupported
from gpuiso.gpu.majors import registered
from gpuiso.gpu.model import Gpu
from gpuiso.host.cgroup_mounts import cgroup_mount
from gpuiso.host.protocol import Host
from gpuiso.policy.resolve import ResolvedPolicy
from gpuiso.policy.rule import ALL_ACCESS, Rule, letters
from gpuiso.reclaim.session import Memo
from gpuiso.reclaim.target import Target

__all__ = ["PlaceGate", "deny_rules"]

_FREEZE_LIMIT = 10.0  # seconds; a thread in an uninterruptible call freezes when that returns
_ALL = letters(ALL_ACCESS)


def deny_rules(gpus: Sequence[Gpu]) -> tuple[Rule, ...]:
    """Rules that close every node of the GPUs and nothing else."""
    numbers = {(n.major, n.minor) for gpu in gpus for n in gpu.nodes if n.major is not None and n.minor is not None}
    return tuple(Rule(False, "c", major, minor, _ALL) for major, minor in sorted(numbers))


class PlaceGate:
    """``rules=False`` leaves everything as it is."""

    def __init__(self, host: Host, calls: Calls, state: State, *, rules: bool = True) -> None:
        self.host = host
        self.calls = calls
        self.state = state
        self.rules = rules

    def describe(self, target: Target, gpus: tuple[Gpu, ...]) -> list[str]:
        if not self.rules:
            return ["leave the nodes of its GPUs open to it"]
        nodes = ", ".join(node.path for gpu in gpus for node in gpu.nodes if node.major is not None)
        return [*self._plan(target, gpus)[0].describe(), f"so that {nodes} are closed to it"]

    def _plan(self, target: Target, gpus: tuple[Gpu, ...]) -> tuple[Plan, Place]:
        if cgroup_mount(self.host, "") is None:
            raise NotSupported(
                "no cgroup v2 tree here, and nothing else closes a GPU to one process",
                hint="--no-rules reclaims without: its GPU's nodes stay open to it",
            )
        denials = deny_rules(gpus)
        goes = pid_target(self.host, self.calls, target.pid)
        if goes.v2 is None:
            raise NotSupported(f"{target} is in no cgroup of the v2 tree")
        if goes.v2.exists:
            return self._nested(target, goes.v2, ResolvedPolicy(denials, default_allow=True))
        policy = ResolvedPolicy(denials, default_allow=True)
        if goes.unit is not None:
            policy = ResolvedPolicy((*self._everything(), *denials), default_allow=False)
        return plan_pid(self.host, self.calls, target.pid, policy, narrower=True), goes.v2

    def _nested(self, target: Target, outer: Place, policy: ResolvedPolicy) -> tuple[Plan, Place]:
        """It has a cgroup of gpuiso's own already, whose rules are to stay: one more below it."""
        below = replace(find_cgroup(self.host, self.calls, f"{outer.cgroup}/reclaimed", create=True), v1=None)
        if below.v2 is None:
            raise NotSupported(f"{target} is in no cgroup of the v2 tree")
        plan = make_plan(self.host, self.calls, below, policy, narrower=True)
        move = MoveTree(below.v2.mount, below.v2.cgroup, target.pid, target.start_time)
        return replace(plan, steps=(*plan.steps, move)), below.v2

    def _everything(self) -> Iterator[Rule]:
        """All that the kernel has drivers for, a major each: systemd knows no denials, only what it may leave out."""
        yield Rule(False, "a", None, None, _ALL)
        yield Rule(True, "b", None, None, _ALL)
        for major in sorted(registered(self.host, "c")):
            yield Rule(True, "c", major, None, _ALL)

    def close(self, target: Target, gpus: tuple[Gpu, ...], remember: Callable[[Memo], None]) -> Memo:
        if not self.rules:
            return {"open": True}
        plan, place = self._plan(target, gpus)
        memo: dict[str, Any] = {
            "mount": place.mount,
            "cgroup": place.cgroup,
            "unit": plan.target.unit,
            "entries": [],
        }
        try:
            with self.state.lock(), ExitStack() as keep:
                for step in plan.steps:
                    before = step.record(self.calls)
                    memo["entries"].append({"step": step.as_json(), "before": dict(before)})
                    remember(memo)
                    step.apply(self.calls, before, keep)
                    step.check(self.calls)
                plan.verify(self.calls)
        except (GpuisoError, OSError) as error:
            said = error.message if isinstance(error, GpuisoError) else str(error.strerror)
            self.open(memo)
            raise GpuisoError(f"the GPUs could not be closed to {target}: {said}") from error
        return memo

    def open(self, memo: Memo) -> list[str]:
        if memo.get("open"):
            return []
        with self.state.lock():
            there = os.path.isdir(f"{memo['mount']}{memo['cgroup']}")
            if there:
                self._freeze(memo, frozen=False)
            said: list[str] = []
            entries = [self._entry(entry, memo, said) for entry in memo["entries"]]
            done, stays, left = undo_entries(entries, self.calls)
            if there and memo["unit"] is not None:
                said += self._lift(memo)
        if left:
            raise GpuisoError("; ".join(left))
        return [*done, *stays, *said]

    def _entry(self, entry: Mapping[str, Any], memo: Memo, said: list[str]) -> Any:
        """A step and what was before it; a cgroup that was removed meanwhile is stood in for.

        A scope's processes stay in it then, since systemd puts none into a slice; others go to what is left above.
        """
        before = entry["before"]
        if "tasks" in before:
            tasks = []
            for pid, start, place in before["tasks"]:
                home = place
                if place is not None and not os.path.isdir(f"{memo['mount']}{place}"):
                    home = memo["cgroup"] if memo["unit"] is not None else _existing(memo["mount"], place)
                    said.append(f"{place} is gone: what came from there is in {home}")
                tasks.append([pid, start, home])
            before = {**before, "tasks": tasks}
        return from_json(entry["step"]), before

    def _lift(self, memo: Memo) -> list[str]:
        """Who could not be moved back stays in the scope, without rules."""
        try:
            with self.calls.cgroup(memo["mount"], memo["cgroup"]) as directory:
                if not self.calls.read(directory, "cgroup.procs").split():
                    return []  # systemd removes an empty scope by itself
        except FileNotFoundError:
            return []
        self.calls.set_unit_properties(memo["unit"], [("DevicePolicy", "auto"), ("DeviceAllow", [])], runtime=True)
        return [f"lifted the rules of {memo['unit']}"]

    def freeze(self, memo: Memo) -> None:
        self._freeze(memo, frozen=True)

    def _freeze(self, memo: Memo, *, frozen: bool) -> None:
        word = "1" if frozen else "0"
        try:
            with self.calls.cgroup(memo["mount"], memo["cgroup"]) as directory:
                self.calls.write(directory, "cgroup.freeze", word)
                limit = time.monotonic() + _FREEZE_LIMIT
                while f"frozen {word}" not in self.calls.read(directory, "cgroup.events").splitlines():
                    if time.monotonic() > limit:
                        raise GpuisoError(f"{memo['cgroup']} did not {'freeze' if frozen else 'thaw'}")
                    time.sleep(0.005)
        except OSError as error:
            raise GpuisoError(f"{memo['cgroup']} cannot be frozen or thawed: {error.strerror}") from error

    def kill(self, cgroup: str, members: frozenset[int]) -> bool:
        mount = cgroup_mount(self.host, "")
        if mount is None:
            return False
        try:
            with self.calls.cgroup(mount, cgroup) as directory:
                inside = {int(pid) for pid in self.calls.read(directory, "cgroup.procs").split()}
                if not inside <= members or any(entry.is_dir() for entry in os.scandir(directory)):
                    return False  # it reaches everything below too
                # Since Linux kernel commit 661ee6280931 ("cgroup: introduce cgroup.kill") (in v5.14).
                self.calls.write(directory, "cgroup.kill", "1")
        except OSError:
            return False  # no such file, or a threaded cgroup: each process gets its own signal
        return True


def _existing(mount: str, cgroup: str) -> str:
    while cgroup != "/" and not os.path.isdir(f"{mount}{cgroup}"):
        cgroup = cgroup.rpartition("/")[0] or "/"
    return cgroup
