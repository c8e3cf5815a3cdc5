# SPDX-License-Identifier: Apache-2.0
"""What can be leased: whole GPUs, and the MIG devices of a GPU in MIG mode."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpuiso.gpu.model import Gpu, Inventory, MigDevice, Vendor
from gpuiso.policy.gpus import gpu_nodes, mig_nodes

__all__ = ["Unit", "overlap", "units_of"]


@dataclass(frozen=True, slots=True)
class Unit:
    """``id`` names it for good: a UUID, or the vendor and PCI address of a GPU that has none.

    ``gpu`` is the id of the GPU that it is or is a part of, ``index`` that GPU's place among its vendor's in PCI order,
    ``profile`` the MIG profile (None for a whole GPU). ``nodes`` are path, major and minor of its own nodes: without
    them it cannot be used.
    """

    id: str
    gpu: str
    vendor: Vendor
    index: int
    pci_address: str
    uuid: str | None = None
    profile: str | None = None
    nodes: tuple[tuple[str, int, int], ...] = ()

    @property
    def whole(self) -> bool:
        return self.id == self.gpu

    @property
    def subject(self) -> str:
        """How a device rule names it."""
        if not self.whole:
            return f"mig {self.id}"
        return f"gpu {self.uuid if self.uuid and self.vendor == 'nvidia' else self.pci_address}"

    @property
    def label(self) -> str:
        """For people, where its id would be too long."""
        name = f"GPU {self.index}" if self.vendor == "nvidia" else f"GPU {self.vendor}:{self.index}"
        return name if self.whole else f"MIG {self.profile or 'device'} of {name}"

    def __str__(self) -> str:
        return f"{self.label} ({self.id})"


def units_of(inventory: Inventory) -> tuple[Unit, ...]:
    """Everything that can be leased on a host, in PCI order.

    A GPU in MIG mode cannot be used as a whole, and a MIG device without a UUID (NVML does not answer) cannot be
    selected by a process: they are not in the list.
    """
    found: list[Unit] = []
    for gpu in inventory.gpus:
        if gpu.index is None or gpu.node is None or gpu.node.major is None:
            continue
        name = _gpu_id(gpu)
        if gpu.mig_enabled or gpu.mig_devices:
            found += [unit for mig in gpu.mig_devices if (unit := _mig(inventory, gpu, name, mig)) is not None]
        else:
            nodes = [node for node in gpu_nodes(inventory, gpu.pci_address, allow=True) if node in gpu.nodes]
            numbers = tuple((n.path, n.major, n.minor) for n in nodes if n.major is not None and n.minor is not None)
            found.append(Unit(name, name, gpu.vendor, gpu.index, gpu.pci_address, gpu.uuid, None, numbers))
    return tuple(found)


def _gpu_id(gpu: Gpu) -> str:
    return gpu.uuid if gpu.uuid and gpu.vendor == "nvidia" else f"{gpu.vendor}:{gpu.pci_address}"


def _mig(inventory: Inventory, gpu: Gpu, name: str, mig: MigDevice) -> Unit | None:
    if mig.uuid is None or gpu.index is None or not mig.nodes:
        return None
    own = {node.path for node in (*gpu.nodes, *mig.nodes)}
    nodes = [node for node in mig_nodes(inventory, mig.uuid, allow=True) if node.path in own]
    numbers = tuple((n.path, n.major, n.minor) for n in nodes if n.major is not None and n.minor is not None)
    return Unit(mig.uuid, name, gpu.vendor, gpu.index, gpu.pci_address, mig.uuid, mig.profile or "?", numbers)


def overlap(one: tuple[str, str], others: Iterable[tuple[str, str]]) -> bool:
    """Whether units (id, and id of the GPU) have silicon in common: the same one, or a GPU and a part of it."""
    unit, gpu = one
    return any(unit in (other, whole) or gpu == other for other, whole in others)
