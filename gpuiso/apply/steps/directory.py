# SPDX-License-Identifier: Apache-2.0
"""Make a cgroup."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass

from gpuiso.apply.calls import Calls
from gpuiso.apply.steps.base import Before, Keep, Occupied, Step, StepFailed

__all__ = ["MakeCgroup"]


@dataclass(frozen=True)
class MakeCgroup(Step):
    """A directory of the hierarchy mounted at ``mount``."""

    mount: str
    cgroup: str

    kind = "make-cgroup"

    @property
    def key(self) -> str:
        return f"{self.kind} {self.mount}{self.cgroup}"

    def describe(self) -> str:
        return f"make the cgroup {self.mount}{self.cgroup}"

    def verifies(self) -> str:
        return "it exists and its type is domain or threaded"

    @property
    def _place(self) -> tuple[str, str]:
        above, _, name = self.cgroup.rpartition("/")
        return above or "/", name

    def record(self, calls: Calls) -> Before:
        try:
            with calls.cgroup(self.mount, self.cgroup):
                return {"existed": True}
        except FileNotFoundError:
            return {"existed": False}

    def apply(self, calls: Calls, before: Before, keep: Keep) -> None:
        if before["existed"]:
            return
        above, name = self._place
        with calls.cgroup(self.mount, above) as directory:
            calls.mkdir(directory, name)

    def check(self, calls: Calls) -> None:
        with calls.cgroup(self.mount, self.cgroup) as directory:
            try:
                kind = calls.read(directory, "cgroup.type").strip()
            except FileNotFoundError:
                return  # cgroup v1 has no types
        if kind == "domain invalid":
            raise StepFailed(
                f"{self.mount}{self.cgroup} is below a threaded cgroup: the kernel lets no process into it",
                hint="name a cgroup that is not below a threaded one",
            )

    def undo(self, calls: Calls, before: Before) -> str | None:
        if before["existed"]:
            return None
        above, name = self._place
        try:
            with calls.cgroup(self.mount, above) as directory:
                calls.rmdir(directory, name)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno == errno.EBUSY:
                raise Occupied(f"left the cgroup {self.mount}{self.cgroup}: {self._inside(calls)} in it") from error
            raise StepFailed(f"{self.mount}{self.cgroup} cannot be removed: {os.strerror(error.errno or 0)}") from error
        return f"removed the cgroup {self.mount}{self.cgroup}"

    def _inside(self, calls: Calls) -> str:
        try:
            with calls.cgroup(self.mount, self.cgroup) as directory, os.scandir(directory) as entries:
                cgroups = any(entry.is_dir(follow_symlinks=False) for entry in entries)
        except OSError:
            return "processes or cgroups are"  # what the kernel's EBUSY meant; it went while we looked
        return "cgroups are" if cgroups else "processes are"
