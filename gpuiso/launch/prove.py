# SPDX-License-Identifier: Apache-2.0
"""Proof, from inside the cgroup, that of all GPUs the leased ones can be opened and no others.

Every program of every level is read back and run for every node; then nodes of the same numbers are made and accessed,
which the kernel answers by the same programs. Nodes of others cannot even be made.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Sequence

from gpuiso.apply.target import Place
from gpuiso.apply.verify import read_levels
from gpuiso.devfilter.interpret import Access
from gpuiso.devfilter.levels import Level, judge
from gpuiso.errors import FailedAndUndone
from gpuiso.gpu.model import DeviceNode
from gpuiso.grants.units import Unit
from gpuiso.launch.lease import CgroupId
from gpuiso.policy.rule import MKNOD, READ, WRITE

__all__ = ["prove"]

_MASKS = (MKNOD, READ, WRITE, READ | WRITE)
_Numbers = dict[tuple[int, int], str]


def prove(cgroup: CgroupId, units: Iterable[Unit], others: Iterable[Unit], nodes: Sequence[DeviceNode]) -> None:
    """``nodes`` are what the leased ``units`` need, control nodes included.

    :raises FailedAndUndone: the kernel answers otherwise.
    """
    leased: _Numbers = {(node.major, node.minor): node.path for node in nodes if None not in (node.major, node.minor)}  # type: ignore[misc]
    leased |= {(major, minor): path for unit in units for path, major, minor in unit.nodes}
    closed = {(major, minor): path for unit in others for path, major, minor in unit.nodes}
    closed = {numbers: path for numbers, path in closed.items() if numbers not in leased}
    _by_reading(read_levels(Place(cgroup.mount, cgroup.path)), leased, closed)
    directory = tempfile.mkdtemp(prefix="gpuiso-prove-")
    try:
        _by_trying(directory, leased, closed)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _by_reading(levels: Sequence[Level], leased: _Numbers, closed: _Numbers) -> None:
    for (major, minor), path in leased.items():
        verdict = judge(levels, Access("c", major, minor, READ | WRITE), rules=False)
        if verdict.value == "deny":
            where = verdict.first_denial
            raise FailedAndUndone(f"{path} is denied at {where.path if where else 'some level'}")
    for (major, minor), path in closed.items():
        for mask in _MASKS:
            verdict = judge(levels, Access("c", major, minor, mask), rules=False)
            if verdict.value != "deny":
                raise FailedAndUndone(f"{path} is not denied: the programs of the cgroup say {verdict.value}")


def _by_trying(directory: str, leased: _Numbers, closed: _Numbers) -> None:
    for (major, minor), path in closed.items():
        if _made(directory, major, minor) is not None:
            raise FailedAndUndone(f"a node like {path} can be made, though it is denied")
    for (major, minor), path in leased.items():
        made = _made(directory, major, minor)
        if made is not None and not os.access(made, os.R_OK | os.W_OK):
            raise FailedAndUndone(f"{path} cannot be opened, though it is allowed")


def _made(directory: str, major: int, minor: int) -> str | None:
    """A node of these numbers; None where it may not be made (a filter, or no CAP_MKNOD)."""
    path = f"{directory}/{major}-{minor}"
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(major, minor))
    except PermissionError:
        return None
    return path
