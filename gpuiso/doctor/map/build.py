# SPDX-License-Identifier: Apache-2.0
"""The map of a host: reads its processes, groups them into workloads, asks the gates, judges each cell."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from gpuiso.doctor.machine import Machine
from gpuiso.doctor.map.access import Access
from gpuiso.doctor.map.cells import cells_of, closed_nodes
from gpuiso.doctor.map.columns import columns_of
from gpuiso.doctor.map.grouping import Place, place_of
from gpuiso.doctor.map.members import read_members
from gpuiso.doctor.map.memory import Memory, read_memory
from gpuiso.doctor.map.model import SEVERITY, Column, GpuMap, Member, Missing, Workload
from gpuiso.host.cgroup_members import CgroupMembers, places
from gpuiso.host.containers import find_containers
from gpuiso.host.process import command_name
from gpuiso.host.protocol import Host

__all__ = ["build_map"]


def build_map(host: Host, *, every: bool = False) -> GpuMap:
    """Workloads × GPUs of a host.

    Left out are workloads that neither hold nor select a GPU nor hold GPU memory, but for containers with a GPU in
    their /dev, and what has a device filter that lets it open one. ``every`` lists them all.
    """
    prefetch = getattr(host, "prefetch", None)
    if prefetch is not None:
        prefetch()  # NVML takes long; it may do so while /proc is read
    machine = Machine(host)
    members, missing = read_members(host)
    blind = missing[0].why if missing and not members else None
    columns = columns_of(machine.inventory)
    missing += [Missing(what, why) for what, _, why in (m.partition(": ") for m in machine.inventory.not_examined)]
    if not columns:
        return GpuMap(machine, (), (), (), tuple(missing), len(members), blind)
    memory, strays, unknown = read_memory(host, columns, members)
    access = Access(host)
    grouped = _grouped(host, members, missing)
    workloads = [
        _workload(machine, access, columns, memory, place, group)
        for place, group in grouped.items()
        if every or _concerned(access, columns, memory, place, group)
    ]
    workloads.sort(key=_order)
    left_out = len(grouped) - len(workloads)
    unknown = list(dict.fromkeys(missing + unknown))
    return GpuMap(machine, columns, tuple(workloads), tuple(strays), tuple(unknown), left_out, blind)


def _grouped(host: Host, members: Sequence[Member], missing: list[Missing]) -> dict[Place, list[Member]]:
    containers = find_containers(host, CgroupMembers({member.pid: places(member.cgroups) for member in members}))
    missing += [Missing(what, why) for what, why in containers.missing.items()]
    found: dict[Place, list[Member]] = {}
    for member in members:
        found.setdefault(place_of(member, containers), []).append(member)
    return found


def _concerned(
    access: Access, columns: Sequence[Column], memory: Memory | None, place: Place, group: Sequence[Member]
) -> bool:
    if any(member.holds or member.env for member in group):
        return True
    if any((member.pid, column.id) in (memory or {}) for member in group for column in columns):
        return True
    if place.kind == "container":
        return any(_reaches(access, columns, member, absent=True) for member in _unlike(access, group))
    if place.kind == "process" or not any(map(access.filtered, group)):
        return False
    return any(_reaches(access, columns, member, absent=False) for member in _unlike(access, group))


def _reaches(access: Access, columns: Sequence[Column], member: Member, *, absent: bool) -> bool:
    """Whether a process may open the nodes of a GPU; with ``absent``, whether it has them in its /dev at all."""
    for column in columns:
        answers = [access.ask(member, node) for node in column.nodes]
        if answers and not any(answer.absent if absent else answer.verdict == "deny" for answer in answers):
            return True
    return False


def _unlike(access: Access, group: Iterable[Member]) -> list[Member]:
    """One process of each kind that the gates tell apart."""
    return list({access.key(member): member for member in group}.values())


def _workload(
    machine: Machine,
    access: Access,
    columns: Sequence[Column],
    memory: Memory | None,
    place: Place,
    group: Sequence[Member],
) -> Workload:
    members = tuple(replace(member, comm=command_name(machine.host, member.pid)) for member in group)
    variables = dict.fromkeys(item for member in members for item in (member.env or {}).items())
    return Workload(
        place.kind,
        f"{members[0].comm} ({members[0].pid})" if place.kind == "process" else place.name,
        place.id,
        place.cgroup,
        members,
        tuple(variables),
        cells_of(machine, access, columns, memory, members, container=place.kind == "container"),
        closed_nodes(access, columns, members),
    )


def _order(workload: Workload) -> tuple[int, str, str]:
    return SEVERITY.index(workload.state), workload.kind, workload.name
