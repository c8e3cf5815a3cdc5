# SPDX-License-Identifier: Apache-2.0
"""Who uses GPUs without a lease.

NVML's list of processes decides where it knows a process. For others (another pid namespace, another vendor, no
NVML) it counts who has the GPU's own node open and a node that only work needs: nvidia-persistenced and monitoring
open /dev/nvidiaN too, but neither /dev/nvidia-uvm nor /dev/kfd.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuiso.errors import NotFound, Unknown
from gpuiso.gpu.holders import GPU_NODES
from gpuiso.gpu.pci import normal_address
from gpuiso.grants.units import Unit
from gpuiso.host import process
from gpuiso.host.protocol import Host
from gpuiso.launch.lease import Lease

__all__ = ["unleased"]

_WORK = {"nvidia": "/dev/nvidia-uvm", "amd": "/dev/kfd", "intel": None}


def unleased(host: Host, units: Sequence[Unit], leases: Sequence[Lease]) -> dict[str, tuple[int, ...]]:
    """The pids that use each unit (by id) and are in no cgroup that has a lease.

    A pid that NVML lists and that is not of this pid namespace counts too. What the host does not tell (descriptors of
    others, for an ordinary user) is taken for unused.
    """
    homes = [lease.cgroup.path for lease in leases if lease.cgroup is not None]
    starting = {lease.pid for lease in leases}
    listed = _listed(host)
    known = {pid for pids in listed.values() for pid in pids}
    pids = _pids(host)
    found: dict[str, list[int]] = {
        unit.id: strangers
        for unit in units
        if unit.whole and (strangers := [pid for pid in listed.get(unit.pci_address, ()) if pid not in pids])
    }
    for pid in pids:
        held = _descriptors(host, pid)
        using = [unit for unit in units if _uses(unit, pid, held, listed, known)]
        if using and pid not in starting and not _inside(host, pid, homes):
            for unit in using:
                found.setdefault(unit.id, []).append(pid)
    return {unit: tuple(pids) for unit, pids in found.items()}


def _uses(unit: Unit, pid: int, held: Mapping[str, int], listed: Mapping[str, Sequence[int]], known: set[int]) -> bool:
    if unit.vendor == "nvidia" and pid in known:
        return pid in listed.get(unit.pci_address, ()) and (unit.whole or _opens(unit, held))
    work = _WORK[unit.vendor]
    return _opens(unit, held) and (work is None or work in held)


def _opens(unit: Unit, held: Mapping[str, int]) -> bool:
    """A MIG device is told by its capability nodes, which come behind the GPU's own."""
    paths = [path for path, _, _ in unit.nodes]
    return bool(paths) and any(path in held for path in (paths if unit.whole else paths[1:]))


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


def _listed(host: Host) -> dict[str, tuple[int, ...]]:
    """Pids by PCI address, as NVML lists them."""
    try:
        nvml = host.nvml() or {}
    except Unknown:
        return {}
    return {
        normal_address(gpu["pci_bus_id"]): tuple(entry["pid"] for entry in gpu.get("processes") or ())
        for gpu in nvml.get("gpus", ())
        if gpu.get("pci_bus_id")
    }
