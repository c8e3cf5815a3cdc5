# SPDX-License-Identifier: Apache-2.0
"""An inventory as a JSON object, part of what several verbs report."""

from __future__ import annotations

from typing import Any

from gpuiso.gpu.model import DeviceNode, Gpu, Inventory, MigDevice

__all__ = ["inventory_json"]


def inventory_json(inventory: Inventory) -> dict[str, Any]:
    """GPUs in PCI order and the nodes they share. Memory is in bytes, null is "not known"."""
    return {
        "driver_version": inventory.driver_version,
        "open_modules": inventory.open_modules,
        "cuda_version": inventory.cuda_version,
        "gpus": [_gpu(gpu) for gpu in inventory.gpus],
        "shared_nodes": [_node(node) for node in inventory.shared_nodes],
        "not_examined": list(inventory.not_examined),
    }


def _gpu(gpu: Gpu) -> dict[str, Any]:
    return {
        "vendor": gpu.vendor,
        "index": gpu.index,
        "uuid": gpu.uuid,
        "name": gpu.name,
        "pci_address": gpu.pci_address,
        "driver": gpu.driver,
        "minor": gpu.minor,
        "memory_total": gpu.memory_total,
        "memory_used": gpu.memory_used,
        "compute_mode": gpu.compute_mode,
        "persistence_mode": gpu.persistence_mode,
        "mig_enabled": gpu.mig_enabled,
        "mig_devices": [_mig(mig) for mig in gpu.mig_devices],
        "nodes": [_node(node) for node in gpu.nodes],
    }


def _mig(mig: MigDevice) -> dict[str, Any]:
    return {
        "uuid": mig.uuid,
        "gpu_instance": mig.gpu_instance,
        "compute_instance": mig.compute_instance,
        "profile": mig.profile,
        "nodes": [_node(node) for node in mig.nodes],
    }


def _node(node: DeviceNode) -> dict[str, Any]:
    actual = node.actual
    return {
        "path": node.path,
        "role": node.role,
        "required": node.required,
        "major": node.major,
        "minor": node.minor,
        "actual": None
        if actual is None
        else {
            "type": actual.type,
            "major": actual.major,
            "minor": actual.minor,
            "mode": f"{actual.mode:04o}",
            "uid": actual.uid,
            "gid": actual.gid,
        },
    }
