# SPDX-License-Identifier: Apache-2.0
"""The columns of the map: what a process can be given of the GPUs of a host."""

from __future__ import annotations

from collections.abc import Iterator

from gpuiso.doctor.map.model import Column
from gpuiso.gpu.model import Gpu, Inventory, MigDevice, Vendor
from gpuiso.gpu.visibility.mig import mig_name
from gpuiso.gpu.visibility.nodes import NVIDIA_UVM, NVIDIACTL, usable_node
from gpuiso.gpu.visibility.rocm import KFD

__all__ = ["columns_of", "device_name"]

_SHARED: dict[Vendor, tuple[str, ...]] = {"nvidia": (NVIDIACTL, NVIDIA_UVM), "amd": (KFD,), "intel": ()}


def columns_of(inventory: Inventory) -> tuple[Column, ...]:
    """A column for each GPU that its vendor's driver holds; for one in MIG mode, one for each MIG device."""
    held = [gpu for gpu in inventory.gpus if gpu.index is not None]
    several = len({gpu.vendor for gpu in held}) > 1
    return tuple(column for gpu in held for column in _columns(gpu, several))


def device_name(mig: MigDevice | None) -> str | None:
    """How the visibility functions call a MIG device; None for a whole GPU."""
    return None if mig is None else mig_name(mig)


def _columns(gpu: Gpu, several: bool) -> Iterator[Column]:
    plain = not several or gpu.vendor == "nvidia"
    number = str(gpu.index) if plain else f"{gpu.vendor}:{gpu.index}"
    label = f"GPU {gpu.index}" if not several else f"{gpu.vendor.upper()} GPU {gpu.index}"
    node = usable_node(gpu)
    own = () if node is None else (node,)
    shared = _SHARED[gpu.vendor]
    if not (gpu.mig_enabled and gpu.mig_devices):
        yield Column(number, label, gpu, None, own, shared)
        return
    for mig in gpu.mig_devices:
        place = f"{mig.gpu_instance}/{mig.compute_instance}"
        caps = tuple(cap.path for cap in mig.nodes)
        yield Column(f"{number}:{place}", f"{label} MIG {place}", gpu, mig, own + caps, shared)
