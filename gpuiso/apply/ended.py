# SPDX-License-Identifier: Apache-2.0
"""Whether that to which rules were applied has ended for good."""

from __future__ import annotations

import os
from collections.abc import Iterator

from gpuiso.apply.applied import Applied
from gpuiso.apply.calls import Calls
from gpuiso.apply.steps import MakeCgroup, MoveTree

__all__ = ["deserted", "has_ended"]

_TRANSIENT = "/run/systemd/transient"
"""Where systemd keeps the file of every transient unit, every scope but init.scope among them, as long as it is
loaded (systemd.unit(5), Unit File Load Path)."""


def has_ended(applied: Applied) -> bool:
    """A scope that is not loaded, whose name may come again but never its settings; a cgroup that is gone from every
    hierarchy. False if it cannot be told."""
    kind, _, name = applied.target.partition(" ")
    if kind == "unit":
        transient = name.endswith(".scope") and name != "init.scope"
        return transient and os.path.lexists(_TRANSIENT) and not os.path.lexists(f"{_TRANSIENT}/{name}")
    places = set(_places(applied))
    return bool(places) and all(
        os.path.lexists(mount) and not os.path.lexists(f"{mount}{cgroup}") for mount, cgroup in places
    )


def deserted(applied: Applied, calls: Calls) -> MakeCgroup | None:
    """The cgroup that was made for a process, if nobody is in it and nothing below it. None if it cannot be told."""
    moved = {(step.mount, step.cgroup) for step, _ in applied.entries if isinstance(step, MoveTree)}
    for step, before in applied.entries:
        if not isinstance(step, MakeCgroup) or before["existed"] or (step.mount, step.cgroup) not in moved:
            continue
        if applied.target == f"cgroup {step.cgroup}" and _is_empty(step, applied.generation, calls):
            return step
    return None


def _is_empty(step: MakeCgroup, generation: int | None, calls: Calls) -> bool:
    try:
        with calls.cgroup(step.mount, step.cgroup) as directory, os.scandir(directory) as entries:
            return (
                os.fstat(directory).st_ino == generation
                and "populated 0" in calls.read(directory, "cgroup.events").splitlines()
                and not any(entry.is_dir(follow_symlinks=False) for entry in entries)
            )
    except OSError:
        return False


def _places(applied: Applied) -> Iterator[tuple[str, str]]:
    """The directories of the target, a mount point and a path each: every hierarchy in which it was changed."""
    for step, _ in applied.entries:
        found = step.as_json()
        if found.get("mount") and applied.target == f"cgroup {found.get('cgroup')}":
            yield found["mount"], found["cgroup"]
