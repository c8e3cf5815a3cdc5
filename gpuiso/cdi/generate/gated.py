# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's other nodes: management, IMEX channels, GPUDirect Storage, MOFED, GDRCopy, NVSwitch, and WSL."""

from __future__ import annotations

import fnmatch
import re

from gpuiso.cdi.generate.driver import Link
from gpuiso.cdi.generate.hooks import HookMaker
from gpuiso.cdi.generate.nodes import NodeWriter
from gpuiso.cdi.generate.options import Mode
from gpuiso.cdi.generate.root import Root
from gpuiso.cdi.spec import ContainerEdits, Device, DeviceNode, Mount
from gpuiso.errors import NotFound
from gpuiso.host.protocol import Host

__all__ = ["gated_devices", "imex_devices", "management_devices", "wsl_edits"]

_MOUNT = ("ro", "nosuid", "nodev", "rbind", "rprivate")
_CHANNELS = "/dev/nvidia-caps-imex-channels"
_NOT_FOR_MANAGEMENT = ("nvidia-fs", "nvidia-nvswitch", "nvidia-nvlink")

# Directory and name patterns of the nodes of each mode, and files that go with them.
_GATED: dict[str, tuple[tuple[tuple[str, str], ...], tuple[str, ...]]] = {
    "gds": ((("/dev", "nvidia-fs*"),), ("/run/udev", "/etc/cufile.json")),
    "mofed": ((("/dev/infiniband", "uverbs*"), ("/dev/infiniband", "rdma_cm")), ()),
    "gdrcopy": ((("/dev", "gdrdrv"),), ()),
    "nvswitch": ((("/dev", "nvidia-nvswitchctl"), ("/dev", "nvidia-nvswitch*")), ()),
}

# Microsoft and NVIDIA, "CUDA on WSL": the driver is Windows's, mounted below /usr/lib/wsl.
_WSL_STORE = "/usr/lib/wsl/drivers"
_WSL_LIBRARIES = "/usr/lib/wsl/lib"
_WSL_FILES = (
    "libcuda.so.1.1",
    "libcuda_loader.so",
    "libnvidia-ptxjitcompiler.so.1",
    "libnvidia-ml.so.1",
    "libnvidia-ml_loader.so",
    "libdxcore.so",
    "libnvdxgdmal.so.1",
    "nvcubins.bin",
    "nvidia-smi",
)


def management_devices(writer: NodeWriter) -> list[Device]:
    """One device ``all`` with every NVIDIA node, those of MIG configuration and IMEX included."""
    paths = [
        f"/dev/{name}"
        for name in writer.names("/dev")
        if name.startswith("nvidia") and not name.startswith(_NOT_FOR_MANAGEMENT)
    ]
    paths += _matching(writer, "/dev/nvidia-caps", "nvidia-cap*")
    paths += _matching(writer, _CHANNELS, "channel*")
    edits = writer.edits_of_paths(paths)
    if not edits.device_nodes:
        raise NotFound("no NVIDIA device nodes", hint="load the driver, for example with nvidia-modprobe -u -c0")
    return [Device("all", container_edits=edits)]


def imex_devices(writer: NodeWriter) -> list[Device]:
    """One device for each IMEX channel, by its number."""
    devices = []
    for path in _matching(writer, _CHANNELS, "channel*"):
        match = re.search(r"/channel(\d+)\Z", path)
        edits = writer.edits_of_paths([path])
        if match is not None and edits.device_nodes:
            devices.append(Device(match[1], container_edits=edits))
    if not devices:
        raise NotFound(f"no IMEX channels in {_CHANNELS}")
    return sorted(devices, key=lambda device: int(device.name))


def gated_devices(host: Host, mode: Mode, writer: NodeWriter) -> list[Device]:
    """One device ``all`` with the nodes of ``gds``, ``mofed``, ``gdrcopy`` or ``nvswitch``."""
    patterns, files = _GATED[mode]
    paths = [path for directory, pattern in patterns for path in _matching(writer, directory, pattern)]
    edits = writer.edits_of_paths(paths)
    if not edits.device_nodes:
        wanted = " or ".join(f"{directory}/{pattern}" for directory, pattern in patterns)
        raise NotFound(f"mode {mode}: no device {wanted}")
    root = Root(host)
    mounts = tuple(Mount(path, path, _MOUNT) for path in files if root.stat(path) is not None)
    return [Device("all", container_edits=edits + ContainerEdits(mounts=mounts))]


def wsl_edits(host: Host, driver_root: str, writer: NodeWriter, hooks: HookMaker) -> tuple[Device, ContainerEdits]:
    """The one device of a WSL machine, ``all``, and the edits that go with it."""
    node: DeviceNode | None = writer.existing("/dev/dxg")
    root = Root(host, driver_root)
    stores = [path for path in root.glob(_WSL_STORE, "*") if root.stat(f"{path}/libcuda.so.1.1") is not None]
    places = (*stores, _WSL_LIBRARIES)
    found = [
        path
        for name in _WSL_FILES
        if (path := next((f"{p}/{name}" for p in places if root.stat(f"{p}/{name}") is not None), None)) is not None
    ]
    if node is None or not found:
        raise NotFound("no /dev/dxg, or no driver files below /usr/lib/wsl")
    mounts = tuple(Mount(root.host_path(path), path, _MOUNT) for path in found)
    smi = tuple(Link(path, "/usr/bin/nvidia-smi") for path in found if path.endswith("/nvidia-smi"))
    common = ContainerEdits(
        env=("NVIDIA_VISIBLE_DEVICES=void",),
        mounts=mounts,
        hooks=hooks.links(smi) + hooks.libraries(tuple(found)),
    )
    return Device("all", container_edits=ContainerEdits(device_nodes=(node,))), common


def _matching(writer: NodeWriter, directory: str, pattern: str) -> list[str]:
    return [f"{directory}/{name}" for name in writer.names(directory) if fnmatch.fnmatchcase(name, pattern)]
