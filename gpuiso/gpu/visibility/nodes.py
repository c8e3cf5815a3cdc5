# SPDX-License-Identifier: Apache-2.0
"""Which device nodes stand between a process and its GPUs."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from gpuiso.gpu.model import Gpu, MigDevice, Vendor

__all__ = [
    "NVIDIACTL",
    "NVIDIA_UVM",
    "is_denied",
    "mig_is_denied",
    "node_path",
    "node_paths",
    "of_vendor",
    "usable_node",
]

NVIDIACTL = "/dev/nvidiactl"
NVIDIA_UVM = "/dev/nvidia-uvm"


def node_path(name: str) -> str:
    """The path of a node named by path or by its name below /dev: ``nvidia1`` is ``/dev/nvidia1``."""
    return name if name.startswith("/") else f"/dev/{name}"


def node_paths(names: Iterable[str]) -> frozenset[str]:
    return frozenset(node_path(name) for name in names)


def of_vendor(gpus: Iterable[Gpu], vendor: Vendor) -> list[Gpu]:
    """The GPUs of one vendor that its driver holds, in PCI order."""
    held = (gpu for gpu in gpus if gpu.vendor == vendor and gpu.index is not None)
    return sorted(held, key=lambda gpu: (gpu.index or 0, gpu.pci_address))


def usable_node(gpu: Gpu) -> str | None:
    """The path of the node whose open decides whether a process can use this GPU."""
    if gpu.node is not None:
        return gpu.node.path
    if gpu.minor is None:
        return None
    return f"/dev/nvidia{gpu.minor}" if gpu.vendor == "nvidia" else f"/dev/dri/renderD{gpu.minor}"


def is_denied(gpu: Gpu, denied: Collection[str]) -> bool:
    return usable_node(gpu) in denied


def mig_is_denied(mig: MigDevice, denied: Collection[str]) -> bool:
    """Whether a capability node that the MIG device needs is denied."""
    return any(node.path in denied for node in mig.nodes)
