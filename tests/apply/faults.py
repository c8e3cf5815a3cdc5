# SPDX-License-Identifier: Apache-2.0
"""Calls that fail, or at which the process dies, and what a cgroup tree looks like before and after."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuiso.apply.calls import Calls
from gpuiso.host.device_programs import query_device_programs

__all__ = ["At", "Counted", "Die", "Fail", "FailFrom", "snapshot"]

_PLAIN = {"cgroup"}  # goes through open_cgroup


class Counted(Calls):
    """Calls, numbered from 1 in the order they are made; ``log`` holds their names."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def before(self, number: int) -> None:
        """Comes before each call."""

    def after(self, number: int) -> None:
        """Comes after each call, whether it succeeded or not."""


def _counted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def counted(self: Counted, *arguments: Any, **options: Any) -> Any:
        self.log.append(name)
        number = len(self.log)
        self.before(number)
        try:
            return call(self, *arguments, **options)
        finally:
            self.after(number)

    return counted


for _name, _call in vars(Calls).items():
    if callable(_call) and not _name.startswith("_") and _name not in _PLAIN:
        setattr(Counted, _name, _counted(_name, _call))


@dataclass(frozen=True)
class _Moment:
    number: int
    done: bool


class At(Counted):
    """Something happens at the call of that number: instead of it, or with ``done`` when it was carried out."""

    def __init__(self, number: int, *, done: bool) -> None:
        super().__init__()
        self.moment = _Moment(number, done)

    def happen(self) -> None:
        raise AssertionError("subclasses say what happens")

    def before(self, number: int) -> None:
        if self.moment == _Moment(number, done=False):
            self.happen()

    def after(self, number: int) -> None:
        if self.moment == _Moment(number, done=True):
            self.happen()


class Fail(At):
    def happen(self) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))


class Die(At):
    def happen(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class FailFrom(Counted):
    """Every call from one on fails: the undo too."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.first = number

    def before(self, number: int) -> None:
        if number >= self.first:
            raise OSError(errno.EIO, os.strerror(errno.EIO))


def snapshot(top: Path, run: Path, *, ids: bool = True) -> dict[str, object]:
    """All that an apply could change: cgroups, controllers, limits, programs, and the files of gpuiso.

    Without ``ids`` programs are compared by what they do: a crash may take the old one, and its like is loaded.
    """
    found: dict[str, object] = {}
    for directory in _directories(top):
        programs = query_device_programs(str(directory), str(directory)) or ()
        found[str(directory)] = {
            "programs": [(p.id if ids else None, p.name, p.insns, p.attach_flags) for p in programs],
            "files": {
                path.name: path.read_text()
                for path in sorted(directory.iterdir())
                if path.name in ("cgroup.subtree_control", "cgroup.procs") or path.name.endswith(".max")
            },
        }
    for path in sorted(run.rglob("*")):
        if path.is_file() and path.name != "lock" and not path.name.endswith(".partial"):
            found[str(path)] = path.read_text()
    return found


def _directories(top: Path) -> Iterator[Path]:
    if top.is_dir():
        yield top
        yield from sorted(path for path in top.rglob("*") if path.is_dir())
