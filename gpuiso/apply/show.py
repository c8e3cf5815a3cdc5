# SPDX-License-Identifier: Apache-2.0
"""What holds for a target now, as the kernel tells it, and how that differs from what was applied."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gpuiso.apply.applied import Applied, load_applied
from gpuiso.apply.calls import Calls
from gpuiso.apply.narrower import denied_elsewhere
from gpuiso.apply.state import State
from gpuiso.apply.steps import StepFailed
from gpuiso.apply.target import Place, Target
from gpuiso.apply.verify import MOST, read_levels
from gpuiso.devfilter.insn import Malformed
from gpuiso.devfilter.owner import owner
from gpuiso.devfilter.recover import recover
from gpuiso.errors import GpuisoError
from gpuiso.host.protocol import DeviceProgram

__all__ = ["Shown", "show"]

_FILES = (
    *("memory.max", "memory.high", "memory.low", "memory.min", "memory.swap.max", "pids.max", "cpu.max"),
    *("cpu.weight", "cpuset.cpus", "io.max", "dmem.max", "misc.max"),
)


@dataclass(frozen=True)
class Shown:
    """``levels`` from the root down, each with its programs as rules; ``devices_list`` is that of cgroup v1.

    ``drift`` are the ways in which it is no more what was applied, in plain words; ``applied`` is None if nothing was.
    """

    target: Target
    levels: tuple[dict[str, Any], ...]
    devices_list: tuple[str, ...] | None
    files: dict[str, str]
    unit: dict[str, Any] | None
    applied: Applied | None
    drift: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """The object of ``gpuiso rules show --json``."""
        applied = self.applied
        place = self.target.v2 or self.target.v1
        return {
            "gpuiso": "rules-show/1",
            "target": self.target.key,
            "cgroup": None if place is None else place.cgroup,
            "levels": list(self.levels),
            "devices_list": None if self.devices_list is None else list(self.devices_list),
            "files": self.files,
            "unit": self.unit,
            "applied": None if applied is None else {"time": applied.time, "policy": dict(applied.policy)},
            "drift": list(self.drift),
        }


def show(target: Target, *, state: State, calls: Calls) -> Shown:
    """Read it all anew. :raises GpuisoError: it cannot be read."""
    applied = load_applied(state, target.key)
    if applied is not None and applied.generation is not None and applied.generation != target.generation(calls):
        applied = None  # that was another cgroup of the same path
    tree = () if target.v2 is None else tuple(read_levels(target.v2))
    return Shown(
        target,
        tuple(_level(level.path, level.programs) for level in tree),
        None if target.v1 is None else tuple(_read(calls, target.v1, "devices.list").splitlines()),
        {} if target.v2 is None else dict(_files(calls, target.v2, applied)),
        None if target.unit is None else _unit(calls, target.unit),
        applied,
        () if applied is None else tuple(_drift(target, applied, calls)),
    )


def _level(path: str, programs: Any) -> dict[str, Any]:
    if programs is None:
        return {"path": path, "programs": None}
    return {"path": path, "programs": [_program(program) for program in programs]}


def _program(program: DeviceProgram) -> dict[str, Any]:
    found: dict[str, Any] = {"id": program.id, "name": program.name, "owner": "foreign", "rules": None}
    if program.insns is None:
        return found
    found["owner"] = owner(program.insns, name=program.name).name
    try:
        found["rules"] = [str(line) for line in recover(program.insns).lines]
    except Malformed:
        pass  # of a newer kernel: its rules are not known
    return found


def _files(calls: Calls, place: Place, applied: Applied | None) -> Iterator[tuple[str, str]]:
    """Limits that are set: those of the policy, and all others that are not the kernel's default."""
    wanted = tuple((applied.policy.get("files") or {}) if applied is not None else ())
    with calls.cgroup(place.mount, place.cgroup) as directory:
        for name in dict.fromkeys((*wanted, *_FILES)):
            try:
                content = calls.read(directory, name).strip()
            except FileNotFoundError:
                continue
            if name in wanted or content not in ("", "max", "0", "100", "max 100000"):
                yield name, content


def _read(calls: Calls, place: Place, name: str) -> str:
    with calls.cgroup(place.mount, place.cgroup) as directory:
        return calls.read(directory, name)


def _unit(calls: Calls, unit: str) -> dict[str, Any]:
    shown = calls.unit_properties(unit)
    names = ("DevicePolicy", "DeviceAllow", "MemoryMax", "TasksMax")
    return {"name": unit, **{name: shown[name] for name in names if name in shown}}


def _drift(target: Target, applied: Applied, calls: Calls) -> Iterator[str]:
    for step, _ in applied.entries:
        try:
            step.check(calls)
        except GpuisoError as error:
            yield error.message
        except OSError as error:
            yield f"{step.describe()}: {error.strerror or error}"
    accepted = frozenset(applied.policy.get("narrower") or ())
    try:
        denied = denied_elsewhere(applied.policy, target)
    except StepFailed as error:
        yield error.message
        return
    yield from [said for access, said in denied.items() if access not in accepted][:MOST]
