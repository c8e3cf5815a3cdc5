# SPDX-License-Identifier: Apache-2.0
"""Which units a process uses.

NVML's list of processes decides where it knows a process. For others (another pid namespace, another vendor, no
NVML) it counts who has the GPU's own node open and a node that only work needs: nvidia-persistenced and monitoring
open /dev/nvidiaN too, but neither /dev/nvidia-uvm nor /dev/kfd.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuiso.errors import Unknown
from gpuiso.gpu.pci import normal_address
from gpuiso.grants.units import Unit
from gpuiso.host.protocol import Host

__all__ = ["Uses"]

_WORK = {"nvidia": "/dev/nvidia-uvm", "amd": "/dev/kfd", "intel": None}


class Uses:
    """``listed`` are pids by PCI address, as NVML lists them; nothing where it does not answer."""

    def __init__(self, host: Host, units: Sequence[Unit]) -> None:
        self.units = units
        self.listed = _listed(host)
        self._known = {pid for pids in self.listed.values() for pid in pids}

    def of(self, pid: int, held: Mapping[str, int]) -> tuple[Unit, ...]:
        """The units that a process uses that has these nodes open."""
        return tuple(unit for unit in self.units if self._uses(unit, pid, held))

    def _uses(self, unit: Unit, pid: int, held: Mapping[str, int]) -> bool:
        if unit.vendor == "nvidia" and pid in self._known:
            return pid in self.listed.get(unit.pci_address, ()) and (unit.whole or _opens(unit, held))
        work = _WORK[unit.vendor]
        return _opens(unit, held) and (work is None or work in held)


def _opens(unit: Unit, held: Mapping[str, int]) -> bool:
    """A MIG device is told by its capability nodes, which come behind the GPU's own."""
    paths = [path for path, _, _ in unit.nodes]
    return bool(paths) and any(path in held for path in (paths if unit.whole else paths[1:]))


def _listed(host: Host) -> dict[str, tuple[int, ...]]:
    try:
        nvml = host.nvml() or {}
    except Unknown:
        return {}
    return {
        normal_address(gpu["pci_bus_id"]): tuple(entry["pid"] for entry in gpu.get("processes") or ())
        for gpu in nvml.get("gpus", ())
        if gpu.get("pci_bus_id")
    }
