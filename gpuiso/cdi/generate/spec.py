# SPDX-License-Identifier: Apache-2.0
"""From a host and options to a spec."""

from __future__ import annotations

from dataclasses import replace

from gpuiso.cdi.generate.drm import drm_devices
from gpuiso.cdi.generate.gated import gated_devices, imex_devices, management_devices, wsl_edits
from gpuiso.cdi.generate.hooks import hook_maker, runtime_hooks
from gpuiso.cdi.generate.nodes import NodeWriter, merge_edits
from gpuiso.cdi.generate.nvidia import driver_edits, driver_files, nvidia_devices
from gpuiso.cdi.generate.options import Generated, Mode, Options
from gpuiso.cdi.rules import faults
from gpuiso.cdi.spec import ContainerEdits, Device, Spec
from gpuiso.cdi.version import minimum_version
from gpuiso.errors import BadInput, NotSupported, Unknown
from gpuiso.gpu.inventory import build_inventory
from gpuiso.gpu.model import Inventory, Vendor
from gpuiso.host.protocol import Host

__all__ = ["generate", "present_modes"]

_KINDS: dict[Mode, tuple[str, str]] = {
    "nvml": ("nvidia.com", "gpu"),
    "wsl": ("nvidia.com", "gpu"),
    "management": ("management.nvidia.com", "gpu"),
    "imex": ("nvidia.com", "imex-channel"),
    "gds": ("nvidia.com", "gds"),
    "mofed": ("nvidia.com", "mofed"),
    "gdrcopy": ("nvidia.com", "gdrcopy"),
    "nvswitch": ("nvidia.com", "nvswitch"),
    "amd": ("amd.com", "gpu"),
    "intel": ("intel.com", "gpu"),
}
_VENDORS: dict[Vendor, Mode] = {"nvidia": "nvml", "amd": "amd", "intel": "intel"}


def generate(host: Host, options: Options) -> Generated:
    """The spec of the GPUs of ``host``.

    :raises NotFound: there is nothing of the asked kind, or the driver's libraries are missing.
    :raises NotSupported: no driver, or hooks that this version does not have.
    :raises BadInput: a vendor or class that CDI does not allow.
    """
    inventory = build_inventory(host)
    writer = NodeWriter(host, options.dev_root, options.additional_gids, options.numbers)
    writer.messages += [f"not known here: {what}" for what in inventory.not_examined]
    mode = options.mode if options.mode != "auto" else _mode(host, inventory, writer)
    hooks = hook_maker(host, options)
    common = ContainerEdits()
    if mode == "nvml":
        devices = nvidia_devices(host, inventory, options, writer, hooks)
        common = driver_edits(driver_files(host, inventory, options), inventory, writer, hooks)
    elif mode == "management":
        devices = management_devices(writer)
        files = driver_files(host, inventory, options, graphics=False)
        common = driver_edits(files, inventory, writer, hooks, management=True)
    elif mode == "wsl":
        device, common = wsl_edits(host, options.driver_root, writer, hooks)
        devices = [device]
    elif mode == "imex":
        devices = imex_devices(writer)
    elif mode in ("amd", "intel"):
        vendor: Vendor = "amd" if mode == "amd" else "intel"
        devices, common = drm_devices(host, inventory, vendor, options, writer)
    else:
        devices = gated_devices(host, mode, writer)
    if options.grants:
        common += ContainerEdits(hooks=runtime_hooks())
    return Generated(_assemble(devices, common, mode, options), tuple(writer.messages))


def present_modes(host: Host) -> tuple[Mode, ...]:
    """The modes for the GPUs of ``host``: NVIDIA before AMD before Intel; ``wsl`` where /dev/dxg is."""
    return _present(host, build_inventory(host))


def _present(host: Host, inventory: Inventory) -> tuple[Mode, ...]:
    try:
        if host.stat("/dev/dxg") is not None and inventory.driver_version is None:
            return ("wsl",)
    except Unknown:
        pass
    return tuple(mode for vendor, mode in _VENDORS.items() if inventory.of(vendor))


def _mode(host: Host, inventory: Inventory, writer: NodeWriter) -> Mode:
    found = _present(host, inventory)
    if not found:
        raise NotSupported("no GPU here whose driver is loaded", hint="gpuiso doctor tells why")
    for mode in found[1:]:
        vendor = {"amd": "AMD", "intel": "Intel"}[mode]
        writer.messages.append(f"there are {vendor} GPUs too; a spec of their own comes with --mode {mode}")
    return found[0]


def _assemble(devices: list[Device], common: ContainerEdits, mode: Mode, options: Options) -> Spec:
    by_name = {device.name: device for device in devices}
    if options.all_device and "all" not in by_name:
        by_name["all"] = Device("all", container_edits=merge_edits(device.container_edits for device in devices))
    vendor, device_class = _KINDS[mode]
    spec = Spec(
        kind=f"{options.vendor or vendor}/{options.device_class or device_class}",
        devices=tuple(device for _, device in sorted(by_name.items())),
        container_edits=common,
    )
    spec = replace(spec, version=minimum_version(spec))
    for _, fault in faults(spec):
        raise BadInput(fault)
    return spec
