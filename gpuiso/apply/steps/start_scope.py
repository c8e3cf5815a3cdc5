# SPDX-License-Identifier: Apache-2.0
"""Move a process and all that descend from it into a new scope of systemd's, which begins with its rules."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpuiso.apply.calls import Calls
from gpuiso.apply.steps.base import Before, Keep, Step, StepFailed
from gpuiso.apply.tree import Root, gather, inside, record_tree, send_back
from gpuiso.errors import GpuisoError, NotFound
from gpuiso.host.process_tree import Process, read_cgroup, read_processes

__all__ = ["StartScope"]


@dataclass(frozen=True)
class StartScope(Step):
    """``properties`` are set as the scope starts, so that they hold before the first process is in it.

    ``cgroup`` is where it will be: systemd puts a scope directly below its slice.
    """

    unit: str
    slice: str
    mount: str
    cgroup: str
    pid: int
    start: int
    properties: tuple[tuple[str, Any], ...]

    kind = "start-scope"

    @property
    def key(self) -> str:
        return f"{self.kind} {self.unit}"

    def describe(self) -> str:
        rules = "; ".join(name for name, _ in self.properties)
        return (
            f"start {self.unit} in {self.slice} with {rules}, and move process {self.pid} and all that descend from "
            "it there"
        )

    def verifies(self) -> str:
        return f"it is at {self.cgroup}, and no process of the tree is outside"

    def record(self, calls: Calls) -> Before:
        return {"tasks": record_tree(Root(self.pid, self.start))}

    def apply(self, calls: Calls, before: Before, keep: Keep) -> None:
        root = Root(self.pid, self.start)
        keep.callback(os.close, calls.pidfd_open(self.pid))
        if self._control_group(calls) is None:
            self._start(calls)

        def move(processes: Sequence[Process]) -> None:
            for process in processes:
                try:
                    calls.attach_processes(self.unit, [process.pid])
                except GpuisoError:
                    if read_cgroup(process.pid) is not None:
                        raise

        gather(root, before["tasks"], self.cgroup, move)

    def _start(self, calls: Calls) -> None:
        """With the root of the tree alone; the others are moved after it.

        One process that ends between our look and systemd's would make the call fail or, with systemd 252, the job,
        with a part of the tree in a scope that has failed.
        """
        fixed = [
            ("Description", f"process {self.pid} under rules of gpuiso"),
            ("Slice", self.slice),
            ("Delegate", True),
            ("DefaultDependencies", False),
            ("CollectMode", "inactive-or-failed"),
        ]
        calls.start_scope(self.unit, [*fixed, *self.properties, ("PIDs", [self.pid])])

    def _control_group(self, calls: Calls) -> str | None:
        try:
            return calls.unit_properties(self.unit).get("ControlGroup") or None
        except NotFound:
            return None

    def check(self, calls: Calls) -> None:
        where = self._control_group(calls)
        if where != self.cgroup:
            raise StepFailed(f"{self.unit} is at {where}, not at {self.cgroup}")
        for process in Root(self.pid, self.start).tree(read_processes()):
            place = read_cgroup(process.pid)
            if place is not None and not inside(place, self.cgroup):
                raise StepFailed(f"process {process.pid} is in {place}, not in {self.cgroup}")

    def undo(self, calls: Calls, before: Before) -> str | None:
        """The scope ends by itself when nobody is in it; stopping it would kill who still is."""
        moved = send_back(calls, self.mount, self.cgroup, before["tasks"])
        return (
            f"moved {moved} process{'' if moved == 1 else 'es'} back out of {self.unit}, which ends with that"
            if moved
            else None
        )
