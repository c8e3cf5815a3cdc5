# SPDX-License-Identifier: Apache-2.0
"""AMD and Intel GPUs: their DRM nodes, AMD's /dev/kfd, Intel's links by path.

Names follow the vendors' own generators: ``amd.com/gpu=0`` (AMD Container Toolkit) and ``intel.com/gpu=0``.
The libraries of both are part of the container's image.
"""

from __future__ import annotations

from gpuiso.cdi.generate.nodes import NodeWriter
from gpuiso.cdi.generate.options import Options
from gpuiso.cdi.spec import ContainerEdits, Device, Mount
from gpuiso.errors import NotFound, Unknown
from gpuiso.gpu.model import Inventory, Vendor
from gpuiso.host.protocol import Host

__all__ = ["drm_devices"]

_BY_PATH = "/dev/dri/by-path"
_NAMES: dict[Vendor, str] = {"amd": "AMD", "intel": "Intel"}


def drm_devices(
    host: Host, inventory: Inventory, vendor: Vendor, options: Options, writer: NodeWriter
) -> tuple[list[Device], ContainerEdits]:
    """The GPUs of ``vendor``, and the edits that all of them share."""
    devices = []
    for gpu in inventory.of(vendor):
        edits = writer.edits(gpu.nodes)
        if not edits.device_nodes:
            writer.messages.append(f"the GPU at {gpu.pci_address} has no DRM nodes; left out")
            continue
        for strategy in options.strategies:
            name = {"index": f"{gpu.index}", "type-index": f"gpu{gpu.index}", "uuid": gpu.uuid}[strategy]
            if name is not None:
                devices.append(Device(name, container_edits=edits))
    if not devices:
        raise NotFound(f"no {_NAMES[vendor]} GPU that its driver holds")
    if vendor == "amd":
        return devices, writer.edits(node for node in inventory.shared_nodes if node.path == "/dev/kfd")
    # Level Zero and the media driver look for devices by these links.
    links = (Mount(_BY_PATH, _BY_PATH, ("ro", "nosuid", "noexec", "rbind", "rprivate")),)
    return devices, ContainerEdits(mounts=links if _exists(host, _BY_PATH) else ())


def _exists(host: Host, path: str) -> bool:
    try:
        return host.stat(path) is not None
    except Unknown:
        return False
