# SPDX-License-Identifier: Apache-2.0
"""GPU memory by process, as NVML lists it, given to the processes of this host.

NVML numbers processes as the caller's pid namespace does; a list made inside a container carries the container's own
numbers, which NSpid in /proc/PID/status leads back from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpuiso.doctor.map.model import Column, Member, Missing, Stray
from gpuiso.errors import NotFound, Unknown
from gpuiso.gpu.pci import normal_address
from gpuiso.host import process
from gpuiso.host.protocol import Host

__all__ = ["Memory", "read_memory"]

Memory = Mapping[tuple[int, str], int | None]
"""Bytes by pid and column id; None where NVML knows of the process but not how much it holds."""

_MIB = 1 << 20


def read_memory(
    host: Host, columns: Sequence[Column], members: Sequence[Member]
) -> tuple[dict[tuple[int, str], int | None] | None, list[Stray], list[Missing]]:
    """Who holds how much, what nobody could be found for, and why nothing is known (then the first is None)."""
    try:
        nvml = host.nvml()
    except Unknown as error:
        return None, [], [Missing(error.what, error.why)]
    if nvml is None:
        return None, [], [Missing("NVML", "there is no NVML library")] if columns else []
    held: dict[tuple[int, str], int | None] = {}
    strays: list[Stray] = []
    by_pid = {member.pid: member for member in members}
    for gpu in nvml.get("gpus", ()):
        own = [column for column in columns if _is(column, gpu)]
        for pid, (size, instance) in _processes(gpu).items():
            member = _find(host, pid, own, members, by_pid)
            column = None if member is None else _column(own, member, instance)
            if member is None or column is None:
                label = f"GPU {own[0].gpu.index}" if own else f"GPU {gpu.get('index')}"
                strays.append(Stray(label, pid, size))
                continue
            key = (member.pid, column.id)
            held[key] = _sum(held.get(key, 0), size)
    return held, strays, []


def _is(column: Column, gpu: Mapping[str, Any]) -> bool:
    if column.gpu.vendor != "nvidia":
        return False
    if gpu.get("pci_bus_id"):
        return normal_address(gpu["pci_bus_id"]) == column.gpu.pci_address
    return gpu.get("uuid") is not None and gpu["uuid"] == column.gpu.uuid


def _processes(gpu: Mapping[str, Any]) -> dict[int, tuple[int | None, tuple[int, int] | None]]:
    """Bytes and MIG instance by pid. A process that computes and draws stands in two lists with the same number."""
    found: dict[int, tuple[int | None, tuple[int, int] | None]] = {}
    for entry in gpu.get("processes") or ():
        size = entry.get("used_memory_mib")
        instance = (entry.get("gpu_instance"), entry.get("compute_instance"))
        known = None if None in instance else instance
        before = found.get(entry["pid"], (None, None))[0]
        value = None if size is None else size * _MIB
        found[entry["pid"]] = (value if before is None else before if value is None else max(before, value), known)
    return found


def _find(
    host: Host, pid: int, own: Sequence[Column], members: Sequence[Member], by_pid: Mapping[int, Member]
) -> Member | None:
    direct = by_pid.get(pid)
    if direct is not None and (direct.holds is None or _holds(direct, own)):
        return direct
    inside = [member for member in members if _holds(member, own) and _inner_pid(host, member.pid) == pid]
    return inside[0] if len(inside) == 1 else direct


def _holds(member: Member, own: Sequence[Column]) -> bool:
    return any(node in (member.holds or {}) for column in own for node in column.nodes)


def _inner_pid(host: Host, pid: int) -> int | None:
    """The number that a process has in its innermost pid namespace."""
    try:
        return process.status(host, pid).nspid[-1]
    except (NotFound, Unknown):
        return None


def _column(own: Sequence[Column], member: Member, instance: tuple[int, int] | None) -> Column | None:
    """The GPU, or the one of its MIG devices that NVML names or that the process has open."""
    if len(own) == 1:
        return own[0]
    if instance is not None:
        places = ((column, column.mig) for column in own)
        return next((c for c, m in places if m and (m.gpu_instance, m.compute_instance) == instance), None)
    held = [column for column in own if any(node in (member.holds or {}) for node in column.nodes[1:])]
    return held[0] if len(held) == 1 else None


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other
