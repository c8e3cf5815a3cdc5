# SPDX-License-Identifier: Apache-2.0
"""Let the children of a cgroup have controllers."""

from __future__ import annotations

import errno
from dataclasses import dataclass

from gpuiso.apply.calls import Calls
from gpuiso.apply.steps.base import Before, Keep, Occupied, Step, StepFailed

__all__ = ["EnableControllers"]

_FILE = "cgroup.subtree_control"


@dataclass(frozen=True)
class EnableControllers(Step):
    """Names in cgroup.subtree_control of ``cgroup``; ``below`` is the child they are for."""

    mount: str
    cgroup: str
    controllers: tuple[str, ...]
    below: str

    kind = "enable-controllers"

    @property
    def key(self) -> str:
        return f"{self.kind} {self.mount}{self.cgroup} {' '.join(self.controllers)}"

    @property
    def _path(self) -> str:
        return f"{self.mount}{self.cgroup.rstrip('/')}/{_FILE}"

    def describe(self) -> str:
        return f"enable {' '.join(self.controllers)} in {self._path}"

    def verifies(self) -> str:
        return f"{self._path} names {' '.join(self.controllers)}"

    def record(self, calls: Calls) -> Before:
        with calls.cgroup(self.mount, self.cgroup) as directory:
            enabled = calls.read(directory, _FILE).split()
        return {"missing": [name for name in self.controllers if name not in enabled]}

    def apply(self, calls: Calls, before: Before, keep: Keep) -> None:
        if not before["missing"]:
            return
        try:
            with calls.cgroup(self.mount, self.cgroup) as directory:
                calls.write(directory, _FILE, " ".join(f"+{name}" for name in before["missing"]))
        except OSError as error:
            raise _explained(error, self._path, before["missing"]) from error

    def check(self, calls: Calls) -> None:
        with calls.cgroup(self.mount, self.cgroup) as directory:
            enabled = calls.read(directory, _FILE).split()
        if missing := [name for name in self.controllers if name not in enabled]:
            raise StepFailed(f"{self._path} does not show {' '.join(missing)} after they were written")

    def undo(self, calls: Calls, before: Before) -> str | None:
        if not before["missing"]:
            return None
        try:
            with calls.cgroup(self.mount, self.cgroup) as directory:
                enabled = calls.read(directory, _FILE).split()
                ours = [name for name in before["missing"] if name in enabled]
                if not ours or self._others(directory):
                    return None
                calls.write(directory, _FILE, " ".join(f"-{name}" for name in ours))
        except FileNotFoundError:
            return None  # the cgroup is gone, and what was enabled in it
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            words = " ".join(before["missing"])
            raise Occupied(f"left {words} enabled in {self._path}: cgroups below {self.below} use it") from error
        return f"disabled {' '.join(ours)} in {self._path}"

    def _others(self, directory: int) -> bool:
        """Whether other children are there, which would lose their limits with the controller."""
        import os

        child = self.below.rpartition("/")[2]
        with os.scandir(directory) as entries:
            return any(entry.is_dir(follow_symlinks=False) and entry.name != child for entry in entries)


def _explained(error: OSError, path: str, names: list[str]) -> StepFailed:
    words = " ".join(names)
    if error.errno == errno.EBUSY:
        return StepFailed(
            f"{path}: {words} cannot be enabled because processes are in that cgroup itself",
            hint="a cgroup with processes of its own has no children with controllers: move them to a child first",
        )
    if error.errno in (errno.ENOENT, errno.EINVAL):
        return StepFailed(f"{path}: this kernel does not have {words} here", hint="cgroup.controllers names them")
    if error.errno == errno.EOPNOTSUPP:
        return StepFailed(f"{path}: the cgroup is threaded, which {words} cannot be")
    return StepFailed(f"{path}: enabling {words}: {error.strerror}")
