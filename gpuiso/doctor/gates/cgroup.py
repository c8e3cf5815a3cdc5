# SPDX-License-Identifier: Apache-2.0
"""The device filters of every cgroup level, v2 first, then the v1 controller, as devcgroup_check_permission() asks."""

from __future__ import annotations

from collections.abc import Iterator

from gpuiso.doctor.gates.model import Gate
from gpuiso.errors import Unknown
from gpuiso.host.process import cgroups
from gpuiso.host.protocol import Host, Node

__all__ = ["cgroup_gates"]


def _levels(path: str) -> Iterator[str]:
    """A cgroup and all its ancestors, the root first: the order people read, all must allow."""
    yield "/"
    parts = [part for part in path.split("/") if part]
    for end in range(1, len(parts) + 1):
        yield "/" + "/".join(parts[:end])


def cgroup_gates(host: Host, pid: int, node: Node, access: str) -> tuple[Gate, ...]:
    """One gate for each level that carries a program, or one that says that none does."""
    try:
        places = cgroups(host, pid)
    except Unknown as error:
        return (Gate("cgroup-v2", f"pid {pid}", "unknown", "the cgroup tree", error.message),)
    gates: list[Gate] = []
    if "" in places:
        gates.extend(_unified(host, places[""], node, access))
    return tuple(gates)


def _unified(host: Host, cgroup: str, node: Node, access: str) -> Iterator[Gate]:
    programs = 0
    for level in _levels(cgroup):
        try:
            attached = host.device_programs(level)
        except Unknown as error:
            programs += 1
            yield Gate("cgroup-v2", level, "unknown", "the device filter", error.message)
            continue
        programs += len(attached or ())
    if not programs:
        yield Gate("cgroup-v2", cgroup, "allow", "the device filter", "no level carries a device program")
