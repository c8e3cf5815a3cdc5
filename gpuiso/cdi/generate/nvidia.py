# SPDX-License-Identifier: Apache-2.0
"""NVIDIA GPUs and MIG devices, with or without NVML (mode ``nvml``)."""

from __future__ import annotations

from collections.abc import Iterator

from gpuiso.cdi.generate.driver import DriverFiles, Link, find_driver, userland_versions
from gpuiso.cdi.generate.hooks import HookMaker
from gpuiso.cdi.generate.nodes import NodeWriter
from gpuiso.cdi.generate.options import Options, Strategy
from gpuiso.cdi.generate.root import Root
from gpuiso.cdi.spec import ContainerEdits, Device
from gpuiso.errors import NotFound, NotSupported, Unknown
from gpuiso.gpu.model import DeviceNode, Gpu, Inventory, MigDevice
from gpuiso.host.protocol import Host

__all__ = ["driver_edits", "driver_files", "nvidia_devices"]

# Capability nodes of the host's own (MIG config and monitor) are for management containers only.
_SHARED_ROLES = ("control", "uvm", "uvm-tools", "modeset")


def nvidia_devices(
    host: Host, inventory: Inventory, options: Options, writer: NodeWriter, hooks: HookMaker
) -> list[Device]:
    """A device for every name of every GPU, or of every MIG device of a GPU in MIG mode."""
    devices: list[Device] = []
    for gpu in inventory.of("nvidia"):
        if gpu.minor is None:
            writer.messages.append(f"the GPU at {gpu.pci_address} has no device minor; left out")
        elif gpu.mig_enabled or gpu.mig_devices:
            devices += _mig_devices(gpu, options, writer)
        else:
            links = drm_links(host, gpu.nodes, options.dev_root)
            edits = writer.edits(gpu.nodes, hooks.links(links))
            devices += [Device(name, container_edits=edits) for name in _gpu_names(gpu, options, writer)]
    if not devices:
        raise NotFound(
            "no NVIDIA GPU that the driver holds", hint="gpuiso doctor tells why" if inventory.of("nvidia") else None
        )
    return devices


def driver_files(host: Host, inventory: Inventory, options: Options, *, graphics: bool = True) -> DriverFiles:
    """The driver's files. Raises NotSupported if no driver is there, NotFound if its libraries are not."""
    root = Root(host, options.driver_root)
    version = inventory.driver_version
    if version is None:
        installed = userland_versions(root)
        if not installed:
            raise NotSupported("no NVIDIA driver is loaded and none is installed")
        version = installed[-1]
    try:
        kernel: str | None = host.kernel
    except Unknown:
        kernel = None
    return find_driver(root, version, kernel, graphics=graphics)


def driver_edits(
    files: DriverFiles, inventory: Inventory, writer: NodeWriter, hooks: HookMaker, *, management: bool = False
) -> ContainerEdits:
    """The edits that every container with an NVIDIA GPU needs."""
    # "void" keeps a hook of NVIDIA's own runtime from injecting a second time.
    env = (f"NVIDIA_CTK_LIBCUDA_DIR={':'.join(files.directories)}", "NVIDIA_VISIBLE_DEVICES=void")
    nodes = [node for node in inventory.shared_nodes if node.role in _SHARED_ROLES and node.path != "/dev/kfd"]
    edits = ContainerEdits() if management else writer.edits(nodes)
    return edits + ContainerEdits(env=env, mounts=files.mounts, hooks=hooks.driver(files, management=management))


def drm_links(host: Host, nodes: tuple[DeviceNode, ...], dev_root: str) -> tuple[Link, ...]:
    """The links below /dev/dri/by-path that lead to ``nodes``."""
    directory = "/dev/dri/by-path"
    names = {node.path.rpartition("/")[2] for node in nodes if node.path.startswith("/dev/dri/")}
    place = directory if dev_root == "/" else f"{dev_root.rstrip('/')}{directory}"
    links = []
    try:
        for name in (host.listdir(place) or ()) if names else ():
            target = host.readlink(f"{place}/{name}")
            if name.startswith("pci-") and target is not None and target.rpartition("/")[2] in names:
                links.append(Link(target, f"{directory}/{name}"))
    except Unknown:
        return ()
    return tuple(links)


def _gpu_names(gpu: Gpu, options: Options, writer: NodeWriter) -> Iterator[str]:
    for strategy in options.strategies:
        if strategy == "index":
            yield str(gpu.index)
        elif strategy == "type-index":
            yield f"gpu{gpu.index}"
        elif gpu.uuid is not None:
            yield gpu.uuid
        else:
            writer.messages.append(
                f"GPU {gpu.index} gets no UUID name: the driver shows its UUID after the first use only"
            )


def _mig_devices(gpu: Gpu, options: Options, writer: NodeWriter) -> Iterator[Device]:
    if not gpu.mig_devices:
        writer.messages.append(f"GPU {gpu.index} is in MIG mode without MIG devices; left out")
    for index, mig in enumerate(gpu.mig_devices):
        if len(mig.nodes) < 2:
            writer.messages.append(
                f"MIG device {gpu.index}:{index} (GPU instance {mig.gpu_instance}, compute instance "
                f"{mig.compute_instance}) lacks a capability node; left out"
            )
            continue
        nodes = [node for node in gpu.nodes if node.role == "gpu" or _has_graphics(mig)]
        edits = writer.edits([*nodes, *mig.nodes])
        for strategy in options.strategies:
            name = _mig_name(gpu, mig, index, strategy)
            if name is None:
                writer.messages.append(f"MIG device {gpu.index}:{index} gets no UUID name: NVML did not tell it")
            else:
                yield Device(name, container_edits=edits)


def _mig_name(gpu: Gpu, mig: MigDevice, index: int, strategy: Strategy) -> str | None:
    if strategy == "uuid":
        return mig.uuid
    return f"{'mig' if strategy == 'type-index' else ''}{gpu.index}:{index}"


def _has_graphics(mig: MigDevice) -> bool:
    return "gfx" in (mig.profile or "")
