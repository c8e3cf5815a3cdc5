# SPDX-License-Identifier: Apache-2.0
"""Move a process and all that descend from it into a cgroup."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass

from gpuiso.apply.calls import Calls
from gpuiso.apply.steps.base import Before, Keep, Step, StepFailed
from gpuiso.apply.tree import Root, gather, inside, record_tree, send_back
from gpuiso.host.process_tree import Process, read_cgroup, read_processes

__all__ = ["MoveTree"]


@dataclass(frozen=True)
class MoveTree(Step):
    """``pid`` with ``start`` (clock ticks after boot) is the root of the tree."""

    mount: str
    cgroup: str
    pid: int
    start: int

    kind = "move-tree"

    @property
    def key(self) -> str:
        return f"{self.kind} {self.mount}{self.cgroup} {self.pid}"

    def describe(self) -> str:
        return f"move process {self.pid} and all that descend from it into {self.mount}{self.cgroup}"

    def verifies(self) -> str:
        return "no process of the tree is outside"

    def record(self, calls: Calls) -> Before:
        return {"tasks": record_tree(Root(self.pid, self.start))}

    def apply(self, calls: Calls, before: Before, keep: Keep) -> None:
        root = calls.pidfd_open(self.pid)  # the number stays this process's as long as we look
        keep.callback(os.close, root)

        def move(processes: Sequence[Process]) -> None:
            with calls.cgroup(self.mount, self.cgroup) as directory:
                for process in processes:
                    self._move(calls, directory, process)

        gather(Root(self.pid, self.start), before["tasks"], self.cgroup, move)

    def _move(self, calls: Calls, directory: int, process: Process) -> None:
        try:
            calls.write(directory, "cgroup.procs", str(process.pid))
        except ProcessLookupError:
            return  # it ended
        except OSError as error:
            words = f"process {process.pid} cannot be moved to {self.mount}{self.cgroup}: {_why(error)}"
            raise StepFailed(words) from error

    def check(self, calls: Calls) -> None:
        for process in Root(self.pid, self.start).tree(read_processes()):
            place = read_cgroup(process.pid)
            if place is not None and not inside(place, self.cgroup):
                raise StepFailed(f"process {process.pid} is in {place}, not in {self.cgroup}")

    def undo(self, calls: Calls, before: Before) -> str | None:
        moved = send_back(calls, self.mount, self.cgroup, before["tasks"])
        return (
            f"moved {moved} process{'' if moved == 1 else 'es'} back out of {self.mount}{self.cgroup}"
            if moved
            else None
        )


def _why(error: OSError) -> str:
    words = {
        errno.EACCES: "not permitted (it needs write access to the cgroup above both)",
        errno.EPERM: "not permitted",
        errno.EBUSY: "controllers are enabled for the children of that cgroup",
        errno.EOPNOTSUPP: "the cgroup is threaded",
        errno.EAGAIN: "pids.max of the cgroup is reached",
    }
    return words.get(error.errno or 0, os.strerror(error.errno or 0))
