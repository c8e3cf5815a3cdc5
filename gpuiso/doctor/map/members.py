# SPDX-License-Identifier: Apache-2.0
"""The processes of a host, with what the map wants to know of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from gpuiso.doctor.map.model import Member, Missing
from gpuiso.errors import NotFound, Unknown
from gpuiso.gpu.holders import GPU_NODES
from gpuiso.gpu.visibility.names import VARIABLES
from gpuiso.host import process
from gpuiso.host.protocol import Host

__all__ = ["SELECTORS", "read_members"]

#: Variables that select GPUs; the others of VARIABLES only change how those are read.
SELECTORS = (
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",
)
_NAMES = tuple(name.encode() for name in SELECTORS)
_T = TypeVar("_T")


def read_members(host: Host) -> tuple[list[Member], list[Missing]]:
    """Every process, and what could not be read of how many of them."""
    try:
        pids = host.pids()
    except Unknown as error:
        return [], [Missing(error.what, error.why)]
    members: list[Member] = []
    unread: dict[str, int] = {}
    for pid in pids:
        try:
            member = Member(
                pid,
                _known(process.cgroups, host, pid, unread, "the cgroup") or {},
                _known(_environ, host, pid, unread, "the environment"),
                _known(_holds, host, pid, unread, "the descriptors"),
            )
        except NotFound:
            continue  # it ended meanwhile
        members.append(member)
    why = "not permitted to read them, or not recorded"
    return members, [Missing(f"{what} of {count} of {len(members)} processes", why) for what, count in unread.items()]


def _known(question: Callable[[Host, int], _T], host: Host, pid: int, unread: dict[str, int], what: str) -> _T | None:
    try:
        return question(host, pid)
    except Unknown:
        unread[what] = unread.get(what, 0) + 1
        return None


def _holds(host: Host, pid: int) -> Mapping[str, int]:
    return process.device_descriptors(host, pid, GPU_NODES)


def _environ(host: Host, pid: int) -> Mapping[str, str]:
    """The variables about GPUs; empty unless one of them selects."""
    data = host.read(f"/proc/{pid}/environ")
    if data is None:
        raise NotFound(f"no process {pid} on {host.name}")
    if not any(name in data for name in _NAMES):
        return {}
    found = process.environ(host, pid)
    if not any(name in found for name in SELECTORS):
        return {}
    return {name: value for name, value in found.items() if name in VARIABLES}
