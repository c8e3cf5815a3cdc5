# SPDX-License-Identifier: Apache-2.0
"""GPUs made by hand for the visibility tests."""

from __future__ import annotations

import json
from typing import Any

from gpuiso.gpu.model import DeviceNode, Gpu, MigDevice, Vendor
from tests.support import REPOSITORY

DATA = REPOSITORY / "tests" / "data" / "visibility"


def oracle(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((DATA / name).read_text())
    return data


def gpu(index: int, uuid: str | None = None, **changes: Any) -> Gpu:
    """An NVIDIA GPU; its node carries the minor, which is the index unless told otherwise."""
    vendor: Vendor = changes.pop("vendor", "nvidia")
    minor = changes.pop("minor", index)
    if vendor == "nvidia":
        node = DeviceNode(f"/dev/nvidia{minor}", "gpu", 195, minor, None, True)
    else:
        node = DeviceNode(f"/dev/dri/renderD{128 + minor}", "drm-render", 226, 128 + minor, None, True)
    fields: dict[str, Any] = {
        "vendor": vendor,
        "index": index,
        "pci_address": f"0000:{index + 1:02x}:00.0",
        "driver": "nvidia",
        "minor": minor,
        "uuid": uuid or f"GPU-{index:08x}-0000-4000-8000-{index:012x}",
        "name": "NVIDIA H200",
        "nodes": (node,),
        "mig_enabled": False,
    }
    return Gpu(**{**fields, **changes})


def mig(gi: int, ci: int = 0, uuid: str | None = None, *, cap: int | None = None) -> MigDevice:
    nodes = () if cap is None else (DeviceNode(f"/dev/nvidia-caps/nvidia-cap{cap}", "cap", 237, cap, None, True),)
    return MigDevice(uuid or f"MIG-{gi:08x}-{ci:04x}-5000-8000-000000000000", gi, ci, "1g.18gb", nodes)


def oracle_gpus(data: dict[str, Any]) -> list[Gpu]:
    return [gpu(index, uuid) for index, uuid in enumerate(data["uuids"])]
