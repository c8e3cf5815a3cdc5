# SPDX-License-Identifier: Apache-2.0
"""Change what the devices controller of cgroup v1 allows, without a gap: writes to devices.allow and devices.deny."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass

from gpuiso.apply.calls import Calls
from gpuiso.apply.steps.base import Before, Keep, Step, StepFailed
from gpuiso.policy.v1 import V1State, read_devices_list, v1_writes

__all__ = ["V1Devices"]

_LIST = "devices.list"


@dataclass(frozen=True)
class V1Devices(Step):
    """``exceptions`` to the default are rows of device type, major, minor (null: every one) and access bits."""

    mount: str
    cgroup: str
    default_allow: bool
    exceptions: tuple[tuple[str, int | None, int | None, int], ...]

    kind = "v1-devices"

    @classmethod
    def of(cls, mount: str, cgroup: str, state: V1State) -> V1Devices:
        rows = tuple((*key, bits) for key, bits in (state.exceptions or {}).items())
        return cls(mount, cgroup, state.default_allow, rows)

    @property
    def key(self) -> str:
        return f"{self.kind} {self.mount}{self.cgroup}"

    @property
    def _path(self) -> str:
        return f"{self.mount}{self.cgroup.rstrip('/')}"

    @property
    def _state(self) -> V1State:
        rows = [tuple(row) for row in self.exceptions]
        found = {("b" if kind == "b" else "c", major, minor): bits for kind, major, minor, bits in rows}
        return V1State(self.default_allow, found)  # type: ignore[arg-type]

    def describe(self) -> str:
        kind = "all but" if self.default_allow else "only"
        count = len(self.exceptions)
        return f"let {self._path}/{_LIST} (cgroup v1) allow {kind} {count} {'entry' if count == 1 else 'entries'}"

    def verifies(self) -> str:
        return f"{_LIST} shows it" if not self.default_allow else f"{_LIST} shows a *:* rwm; it shows no exceptions"

    def record(self, calls: Calls) -> Before:
        try:
            with calls.cgroup(self.mount, self.cgroup) as directory:
                return {"list": calls.read(directory, _LIST)}
        except FileNotFoundError:
            return {"list": None}

    def apply(self, calls: Calls, before: Before, keep: Keep) -> None:
        with calls.cgroup(self.mount, self.cgroup) as directory:
            self._go(calls, directory, self._state, vacant=_is_vacant(calls, directory))

    def _go(self, calls: Calls, directory: int, wanted: V1State, *, vacant: bool) -> int:
        """Write what leads to a state; returns the number of writes."""
        now = read_devices_list(calls.read(directory, _LIST))
        writes = v1_writes(now, wanted, vacant=vacant)
        for write in writes:
            try:
                calls.write(directory, write.file, write.text)
            except OSError as error:
                raise _explained(error, f"{self._path}/{write.file}", write.text) from error
        return len(writes)

    def check(self, calls: Calls) -> None:
        with calls.cgroup(self.mount, self.cgroup) as directory:
            shown = read_devices_list(calls.read(directory, _LIST))
        wanted = self._state
        if shown.default_allow != wanted.default_allow or (
            shown.exceptions is not None and shown.exceptions != wanted.exceptions
        ):
            raise StepFailed(f"{self._path}/{_LIST} does not show what was written")

    def undo(self, calls: Calls, before: Before) -> str | None:
        if before["list"] is None:
            return None
        old = read_devices_list(before["list"])
        try:
            with calls.cgroup(self.mount, self.cgroup) as directory:
                if calls.read(directory, _LIST) == before["list"] and old.exceptions is not None:
                    return None
                known = V1State(True, {}) if old.exceptions is None else old
                writes = self._go(calls, directory, known, vacant=True)
        except FileNotFoundError:
            return None
        return f"{self._path} (cgroup v1) allows what it did before" if writes else None


def _is_vacant(calls: Calls, directory: int) -> bool:
    """Whether no process is in the cgroup, nor a cgroup below it."""
    with os.scandir(directory) as entries:
        if any(entry.is_dir(follow_symlinks=False) for entry in entries):
            return False
    return not calls.read(directory, "cgroup.procs").strip()


def _explained(error: OSError, path: str, text: str) -> StepFailed:
    if error.errno == errno.EPERM:
        return StepFailed(f"{path} does not take {text!r}: the cgroup above does not allow that")
    if error.errno == errno.EINVAL and text == "a":
        return StepFailed(f"{path} does not take {text!r}: there are cgroups below it")
    return StepFailed(f"{path} does not take {text!r}: {os.strerror(error.errno or 0)}")
