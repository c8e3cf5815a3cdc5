# SPDX-License-Identifier: Apache-2.0
"""GPUs, their nodes and who holds them: plain values, filled by :mod:`gpuiso.gpu.inventory`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpuiso.host.protocol import Node

__all__ = ["DeviceNode", "Gpu", "Holder", "Inventory", "MigDevice", "Role", "Vendor"]

Vendor = Literal["nvidia", "amd", "intel"]
Role = Literal[
    "gpu",  # /dev/nvidiaN
    "control",  # /dev/nvidiactl, /dev/kfd
    "uvm",
    "uvm-tools",
    "modeset",
    "cap",  # /dev/nvidia-caps/nvidia-capN
    "imex",
    "nvswitch",
    "drm-card",
    "drm-render",
]


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A node that ought to exist, beside what exists.

    ``major`` and ``minor`` are the numbers the driver registered (/proc/devices, sysfs), None where the driver
    has not registered them. ``actual`` is the entry in /dev, None if absent. ``required`` tells whether compute
    work fails without it. ``known`` is False where the host does not tell whether the node exists.
    """

    path: str
    role: Role
    major: int | None
    minor: int | None
    actual: Node | None
    required: bool
    known: bool = True

    @property
    def right(self) -> bool:
        """Whether the node exists, is a character device and carries the registered numbers."""
        node = self.actual
        return (
            node is not None
            and node.type == "c"
            and self.major is not None
            and (node.major, node.minor) == (self.major, self.minor)
        )


@dataclass(frozen=True, slots=True)
class MigDevice:
    """A MIG compute instance. ``nodes`` are its capability nodes (GPU instance, then compute instance)."""

    uuid: str | None
    gpu_instance: int
    compute_instance: int
    profile: str | None
    nodes: tuple[DeviceNode, ...] = ()


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. ``index`` counts the GPUs of its vendor's driver in PCI order; it is not the minor.

    ``index`` is None for a GPU that no driver of its vendor holds (``driver`` then names who does, or is None).
    ``memory_total`` and ``memory_used`` are bytes, None where NVML (or amdgpu's sysfs) does not tell.
    """

    vendor: Vendor
    index: int | None
    pci_address: str
    driver: str | None
    minor: int | None = None
    uuid: str | None = None
    name: str | None = None
    nodes: tuple[DeviceNode, ...] = ()
    mig_enabled: bool | None = None
    mig_devices: tuple[MigDevice, ...] = ()
    memory_total: int | None = None
    memory_used: int | None = None
    compute_mode: str | None = None
    persistence_mode: bool | None = None

    @property
    def node(self) -> DeviceNode | None:
        """The node whose open decides whether a process can use this GPU."""
        return next((n for n in self.nodes if n.role in ("gpu", "drm-render")), None)


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that has a GPU node open (a descriptor in /proc/PID/fd) or mapped."""

    pid: int
    comm: str
    node: str
    descriptors: int


@dataclass(frozen=True, slots=True)
class Inventory:
    """All GPUs of a host in PCI order, and the nodes they share.

    ``driver_version`` is NVIDIA's kernel module version (/proc/driver/nvidia/version); ``open_modules`` whether
    that module is the open flavour. ``not_examined`` names what could not be read, and why.
    """

    gpus: tuple[Gpu, ...]
    shared_nodes: tuple[DeviceNode, ...]
    driver_version: str | None
    open_modules: bool | None
    cuda_version: str | None
    not_examined: tuple[str, ...] = ()

    def of(self, vendor: Vendor) -> tuple[Gpu, ...]:
        """The GPUs of one vendor that its driver holds, by index."""
        return tuple(gpu for gpu in self.gpus if gpu.vendor == vendor and gpu.index is not None)
