# SPDX-License-Identifier: Apache-2.0
"""Who uses GPUs without a lease."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuiso.errors import NotFound, Unknown
from gpuiso.gpu.holders import GPU_NODES
from gpuiso.grants.units import Unit
from gpuiso.grants.uses import Uses
from gpuiso.host import process
from gpuiso.host.protocol import Host
from gpuiso.launch.lease import Lease

__all__ = ["unleased"]


def unleased(host: Host, units: Sequence[Unit], leases: Sequence[Lease]) -> dict[str, tuple[int, ...]]:
    """The pids that use each unit (by id) and are in no cgroup that has a lease.

    A pid that NVML lists and that is not of this pid namespace counts too. What the host does not tell (descriptors of
    others, for an ordinary user) is taken for unused.
    """
    homes = [lease.cgroup.path for lease in leases if lease.cgroup is not None]
    starting = {lease.pid for lease in leases}
    uses = Uses(host, units)
    pids = _pids(host)
    found: dict[str, list[int]] = {
        unit.id: strangers
        for unit in units
        if unit.whole and (strangers := [pid for pid in uses.listed.get(unit.pci_address, ()) if pid not in pids])
    }
    for pid in pids:
        using = uses.of(pid, _descriptors(host, pid))
        if using and pid not in starting and not _inside(host, pid, homes):
            for unit in using:
                found.setdefault(unit.id, []).append(pid)
    return {unit: tuple(pids) for unit, pids in found.items()}


def _pids(host: Host) -> frozenset[int]:
    try:
        return frozenset(host.pids())
    except Unknown:
        return frozenset()


def _descriptors(host: Host, pid: int) -> Mapping[str, int]:
    try:
        return process.device_descriptors(host, pid, GPU_NODES)
    except (NotFound, Unknown):
        return {}


def _inside(host: Host, pid: int, homes: Sequence[str]) -> bool:
    try:
        cgroup = process.unified_cgroup(host, pid) or "/"
    except (NotFound, Unknown):
        return True  # it ended meanwhile
    return any(cgroup == home or cgroup.startswith(f"{home}/") for home in homes)
