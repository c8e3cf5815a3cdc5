# SPDX-License-Identifier: Apache-2.0
"""A cgroup or systemd scope of its own for a process, in which the nodes of GPUs are denied.

Where the process goes depends on who manages the cgroup that it is in:

- a unit of systemd's: a transient scope beside it, whose DevicePolicy and DeviceAllow hold the rules from the moment
  that the process is in it (StartTransientUnit does both);
- a part of the tree that systemd delegates (containers are that), or no systemd: a cgroup below its own, so that the
  limits, the accounting and the kill of its engine still reach it. The same where a scope would be left empty, since
  systemd ends those.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from gpuiso.apply.calls import Calls
from gpuiso.apply.steps import AttachProgram, MakeCgroup, Step, from_json
from gpuiso.apply.target import Place
from gpuiso.apply.undo import undo_entries
from gpuiso.apply.verify import Verification, verify
from gpuiso.devfilter.compile import compile_rules
from gpuiso.devfilter.insn import pack
from gpuiso.errors import GpuisoError, NotFound, NotSupported
from gpuiso.gpu.majors import registered
from gpuiso.gpu.model import Gpu
from gpuiso.host.cgroup_mounts import cgroup_mount
from gpuiso.host.process import start_time, unified_cgroup
from gpuiso.host.protocol import Host
from gpuiso.policy.rule import ALL_ACCESS, Rule, letters
from gpuiso.policy.systemd import to_systemd
from gpuiso.reclaim.members import move_back, move_members
from gpuiso.reclaim.session import Memo
from gpuiso.reclaim.target import Target
from gpuiso.reclaim.tree import descendants

__all__ = ["PlaceGate", "deny_rules"]

_FREEZE_LIMIT = 10.0  # seconds; a thread in an uninterruptible call freezes when that returns


def deny_rules(gpus: Sequence[Gpu]) -> list[Rule]:
    """Rules that close every node of the GPUs and nothing else."""
    numbers = {(n.major, n.minor) for gpu in gpus for n in gpu.nodes if n.major is not None and n.minor is not None}
    return [Rule(False, "c", major, minor, letters(ALL_ACCESS)) for major, minor in sorted(numbers)]


@dataclass(frozen=True)
class _Way:
    """How a process will be closed in: ``unit`` is the scope to start, None for a cgroup of our own."""

    mount: str
    origin: str
    cgroup: str
    unit: str | None
    slice: str | None


class PlaceGate:
    """``tree`` takes along everything that the process started; ``rules=False`` leaves all as it is."""

    def __init__(self, host: Host, calls: Calls, *, tree: bool = False, rules: bool = True) -> None:
        self.host = host
        self.calls = calls
        self.tree = tree
        self.rules = rules

    # What it will do

    def _members(self, target: Target) -> frozenset[int]:
        return descendants(self.host, target.pid) if self.tree else frozenset({target.pid})

    def _way(self, target: Target) -> _Way:
        mount = cgroup_mount(self.host, "")
        origin = unified_cgroup(self.host, target.pid)
        if mount is None or origin is None:
            raise NotSupported(
                "no cgroup v2 tree here, and nothing else closes a GPU to one process",
                hint="--no-rules leaves its nodes open: whoever restores the process by other means can then do so",
            )
        if "/.." in origin:
            raise NotSupported(f"{target} is in a cgroup outside of the tree that is mounted here ({origin})")
        name = f"gpuiso-{target.pid}-{target.start_time}"
        within = _Way(mount, origin, f"{origin.rstrip('/')}/{name}", None, None)
        if not self.host.systemd:
            return within
        unit = self.calls.unit_by_cgroup(origin)
        if unit is None or not unit.endswith((".service", ".scope")):
            return within
        properties = self.calls.unit_properties(unit)
        if properties.get("Delegate") or self._would_empty(mount, unit, origin, target):
            return within
        return _Way(mount, origin, "", f"{name}.scope", str(properties.get("Slice") or "system.slice"))

    def _would_empty(self, mount: str, unit: str, origin: str, target: Target) -> bool:
        if not unit.endswith(".scope"):
            return False
        with self.calls.cgroup(mount, origin) as directory:
            inside = {int(pid) for pid in self.calls.read(directory, "cgroup.procs").split()}
        return inside <= self._members(target)

    def describe(self, target: Target, gpus: tuple[Gpu, ...]) -> list[str]:
        if not self.rules:
            return ["leave its nodes open"]
        way = self._way(target)
        nodes = ", ".join(node.path for gpu in gpus for node in gpu.nodes if node.major is not None)
        who = f"{target} and all it started" if self.tree else str(target)
        if way.unit is not None:
            return [
                f"move {who} from {way.origin} into the systemd scope {way.unit} ({way.slice}), which denies {nodes}"
            ]
        steps = [step.describe() for step in self._steps(way, gpus)]
        return [*steps, f"move {who} from {way.origin} into {way.cgroup}, where {nodes} are denied"]

    @staticmethod
    def _steps(way: _Way, gpus: Sequence[Gpu]) -> Iterator[Step]:
        rules = deny_rules(gpus)
        insns = pack(compile_rules(rules, default_allow=True)).hex()
        yield MakeCgroup(way.mount, way.cgroup)
        yield AttachProgram(way.mount, way.cgroup, insns, len(rules))

    # Close

    def close(self, target: Target, gpus: tuple[Gpu, ...], remember: Callable[[Memo], None]) -> Memo:
        if not self.rules:
            return {"open": True}
        way = self._way(target)
        memo: dict[str, Any] = {
            "pid": target.pid,
            "mount": way.mount,
            "origin": way.origin,
            "cgroup": way.cgroup,
            "unit": way.unit,
            "places": {},
            "entries": [],
        }
        try:
            if way.unit is None:
                self._close_within(way, target, gpus, memo, remember)
            else:
                self._close_scope(way, target, gpus, memo, remember)
            place = Place(way.mount, memo["cgroup"])
            verify(Verification(place, None, tuple(deny_rules(gpus)), default_allow=True, narrower=True), self.calls)
        except (GpuisoError, OSError) as error:
            said = error.message if isinstance(error, GpuisoError) else f"{error.strerror}"
            self.open(memo)
            raise GpuisoError(f"the GPUs could not be closed to {target}: {said}") from error
        return memo

    def _close_within(
        self,
        way: _Way,
        target: Target,
        gpus: tuple[Gpu, ...],
        memo: dict[str, Any],
        remember: Callable[[Memo], None],
    ) -> None:
        with ExitStack() as keep:
            for step in self._steps(way, gpus):
                before = step.record(self.calls)
                memo["entries"].append({"step": step.as_json(), "before": before})
                remember(memo)
                step.apply(self.calls, before, keep)
                step.check(self.calls)
        move_members(self.host, self.calls, memo, remember, lambda: self._members(target))

    def _close_scope(
        self,
        way: _Way,
        target: Target,
        gpus: tuple[Gpu, ...],
        memo: dict[str, Any],
        remember: Callable[[Memo], None],
    ) -> None:
        members = sorted(self._members(target))
        for pid in members:
            try:
                memo["places"][str(pid)] = [start_time(self.host, pid), unified_cgroup(self.host, pid)]
            except NotFound:
                continue
        remember(memo)
        devices = to_systemd([*self._all_but_nothing(), *deny_rules(gpus)])
        self.calls.start_scope(
            str(way.unit),
            [
                ("Description", f"GPUs taken from {target} by gpuiso"),
                ("Slice", way.slice),
                ("CollectMode", "inactive-or-failed"),
                ("Delegate", True),
                ("DevicePolicy", devices.policy),
                ("DeviceAllow", list(devices.allow)),
                ("PIDs", [int(pid) for pid in memo["places"]]),
            ],
        )
        memo["cgroup"] = str(self.calls.unit_properties(str(way.unit)).get("ControlGroup") or "")
        remember(memo)
        if unified_cgroup(self.host, target.pid) != memo["cgroup"]:
            raise GpuisoError(f"systemd did not move it into {way.unit}")
        move_members(self.host, self.calls, memo, remember, lambda: self._members(target))

    def _all_but_nothing(self) -> Iterator[Rule]:
        """Everything there is, as systemd can say it: a major each, so that single minors can be left out."""
        yield Rule(False, "a", None, None, letters(ALL_ACCESS))
        yield Rule(True, "b", None, None, letters(ALL_ACCESS))
        for major in sorted(registered(self.host, "c")):
            yield Rule(True, "c", major, None, letters(ALL_ACCESS))

    # Open

    def open(self, memo: Memo) -> list[str]:
        if memo.get("open"):
            return []
        done: list[str] = []
        here = {**memo, "cgroup": self._cgroup(memo)}
        if here["cgroup"] is not None:
            self._freeze(here, frozen=False)
            done += move_back(self.host, self.calls, here)
            if memo["unit"] is not None:
                done += self._lift(here)
        entries = [(from_json(entry["step"]), entry["before"]) for entry in memo["entries"]]
        undone, left = undo_entries(entries, self.calls)
        if left:
            raise GpuisoError("; ".join(left))
        return [*done, *undone]

    def _cgroup(self, memo: Memo) -> str | None:
        """Where the process was put, None if it never was or that place is gone."""
        cgroup = memo["cgroup"]
        if not cgroup:  # killed before systemd's answer was written down
            try:
                cgroup = self.calls.unit_properties(memo["unit"]).get("ControlGroup")
            except NotFound:
                return None
        return str(cgroup) if cgroup and os.path.isdir(f"{memo['mount']}{cgroup}") else None

    def _lift(self, memo: Memo) -> list[str]:
        """What could not be moved back stays in the scope, without rules."""
        try:
            with self.calls.cgroup(memo["mount"], memo["cgroup"]) as directory:
                if not self.calls.read(directory, "cgroup.procs").split():
                    return []  # systemd removes an empty scope by itself
        except FileNotFoundError:
            return []
        self.calls.set_unit_properties(memo["unit"], [("DevicePolicy", "auto"), ("DeviceAllow", [])], runtime=True)
        return [f"left what could not be moved back in {memo['unit']}, and lifted its rules"]

    # Freeze

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
