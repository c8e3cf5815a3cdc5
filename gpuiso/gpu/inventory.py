# SPDX-License-Identifier: Apache-2.0
"""All GPUs of a host, whoever made them."""

from __future__ import annotations

from gpuiso.gpu.drm import drm_gpus, kfd_node
from gpuiso.gpu.majors import majors_by_name, nvidia_major
from gpuiso.gpu.model import Inventory
from gpuiso.gpu.nvidia import driver_version, nvidia_gpus, nvidia_shared_nodes
from gpuiso.gpu.pci import display_functions
from gpuiso.gpu.sources import Sources
from gpuiso.host.protocol import Host

__all__ = ["build_inventory", "driver_is_hidden"]


def driver_is_hidden(host: Host) -> bool:
    """Whether NVIDIA's driver is loaded, but neither its directory in /proc nor any PCI device can be seen.

    The driver makes /proc/driver/nvidia when it is loaded: where that is missing, something covers it.
    """
    sources = Sources(host)
    if nvidia_major(majors_by_name(sources.text("/proc/devices") or "")) is None:
        return False
    return not sources.listdir("/proc/driver/nvidia") and not display_functions(sources)


def build_inventory(host: Host) -> Inventory:
    """What GPUs there are and which nodes they need.

    A source that this host does not give is named in ``not_examined``; the rest is still told.
    """
    sources = Sources(host)
    functions = display_functions(sources)
    majors = majors_by_name(sources.text("/proc/devices") or "")
    driver = driver_version(sources)
    nvml = sources.nvml()
    gpus = nvidia_gpus(sources, functions, majors, nvml)
    gpus += drm_gpus(sources, functions)
    shared = nvidia_shared_nodes(sources, majors)
    shared += kfd_node(sources, majors)
    return Inventory(
        gpus=tuple(sorted(gpus, key=lambda gpu: gpu.pci_address)),
        shared_nodes=shared,
        driver_version=None if driver is None else driver.version,
        open_modules=None if driver is None else driver.open_modules,
        cuda_version=nvml.get("cuda_version"),
        not_examined=tuple(sources.missing),
    )
