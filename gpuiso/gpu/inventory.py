# SPDX-License-Identifier: Apache-2.0
"""All GPUs of a host, whoever made them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuiso.errors import Unknown
from gpuiso.gpu.drm import drm_gpus, kfd_node
from gpuiso.gpu.majors import character_majors
from gpuiso.gpu.model import Inventory
from gpuiso.gpu.nvidia import driver_version, nvidia_gpus, nvidia_shared_nodes
from gpuiso.gpu.pci import PciFunction, display_functions
from gpuiso.host.protocol import Host

__all__ = ["build_inventory"]


def build_inventory(host: Host) -> Inventory:
    """What GPUs there are and which nodes they need.

    A source that this host does not give is named in ``not_examined``; the rest is still told.
    """
    missing: list[str] = []
    functions: tuple[PciFunction, ...] = ()
    majors: Mapping[str, int] = {}
    nvml: Mapping[str, Any] | None = None
    try:
        functions = display_functions(host)
    except Unknown as error:
        missing.append(error.message)
    try:
        majors = character_majors(host)
    except Unknown as error:
        missing.append(error.message)
    try:
        driver = driver_version(host)
    except Unknown as error:
        driver = None
        missing.append(error.message)
    try:
        nvml = host.nvml()
    except Unknown as error:
        if driver is not None:
            missing.append(error.message)
    try:
        gpus = nvidia_gpus(host, functions, majors, nvml)
    except Unknown as error:
        gpus = ()
        missing.append(error.message)
    gpus += drm_gpus(host, functions)
    return Inventory(
        gpus=tuple(sorted(gpus, key=lambda gpu: gpu.pci_address)),
        shared_nodes=nvidia_shared_nodes(host, majors) + kfd_node(host, majors),
        driver_version=None if driver is None else driver.version,
        open_modules=None if driver is None else driver.open_modules,
        cuda_version=None if nvml is None else nvml.get("cuda_version"),
        not_examined=tuple(missing),
    )
