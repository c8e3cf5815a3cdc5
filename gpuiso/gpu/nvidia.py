# SPDX-License-Identifier: Apache-2.0
"""NVIDIA GPUs, from /proc/driver/nvidia, sysfs and (where it answers) NVML.

The device minor comes from /proc/driver/nvidia/gpus/ADDRESS/information and is not an index: the index is the place
in PCI order among the GPUs that the driver holds and has not excluded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuiso.gpu.majors import nvidia_major
from gpuiso.gpu.mig import CAPABILITIES, capability_minor, mig_devices
from gpuiso.gpu.model import DeviceNode, Gpu, Role
from gpuiso.gpu.pci import NVIDIA, PciFunction, drm_numbers, normal_address
from gpuiso.gpu.sources import Sources
from gpuiso.host.decimals import decimal

__all__ = ["CONTROL_MINOR", "DriverVersion", "driver_version", "nvidia_gpus", "nvidia_shared_nodes"]

_DRIVER = "/proc/driver/nvidia"
_VERSION = re.compile(r"NVRM version:.*?\b(Open Kernel Module|Kernel Module)\b.*?\s(\d{1,5}\.\d{1,5}(?:\.\d{1,5})?)\s")
_UUID = re.compile(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")

MODESET_MINOR, CONTROL_MINOR = 254, 255  # kernel-open/common/inc/nv-chardev-numbers.h


@dataclass(frozen=True, slots=True)
class DriverVersion:
    """The loaded kernel module's version, and whether it is the open flavour."""

    version: str
    open_modules: bool


def driver_version(sources: Sources) -> DriverVersion | None:
    """None if the driver is not loaded."""
    match = _VERSION.search(sources.text(f"{_DRIVER}/version") or "")
    return None if match is None else DriverVersion(match[2], match[1].startswith("Open"))


def _information(sources: Sources, address: str) -> dict[str, str]:
    found = {}
    for line in (sources.text(f"{_DRIVER}/gpus/{address}/information") or "").splitlines():
        name, separator, value = line.partition(":")
        if separator:
            found[name.strip()] = value.strip()
    return found


def _by_address(nvml: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {normal_address(gpu["pci_bus_id"]): gpu for gpu in nvml.get("gpus", ()) if gpu.get("pci_bus_id")}


def _bytes(mib: Any) -> int | None:
    return None if mib is None else int(mib) << 20


def nvidia_gpus(
    sources: Sources, functions: Sequence[PciFunction], majors: Mapping[str, int], nvml: Mapping[str, Any]
) -> tuple[Gpu, ...]:
    """Every NVIDIA GPU in PCI order, the ones that another driver (or none) holds included."""
    held = {normal_address(name): name for name in sources.listdir(f"{_DRIVER}/gpus")}
    on_bus = {function.address: function for function in functions if function.vendor == NVIDIA}
    measured = _by_address(nvml)
    gpus = []
    index = 0
    for address in sorted(held.keys() | on_bus.keys()):
        function = on_bus.get(address)
        driver = "nvidia" if address in held else function.driver if function is not None else None
        facts = _information(sources, held[address]) if address in held else {}
        usable = address in held and facts.get("GPU Excluded") != "Yes"
        gpus.append(_gpu(sources, address, driver, facts, index if usable else None, majors, measured.get(address, {})))
        index += usable
    return tuple(gpus)


def _gpu(
    sources: Sources,
    address: str,
    driver: str | None,
    facts: Mapping[str, str],
    index: int | None,
    majors: Mapping[str, int],
    measured: Mapping[str, Any],
) -> Gpu:
    minor = decimal(facts.get("Device Minor", ""))
    if minor is None:
        minor = measured.get("minor")
    uuid = facts.get("GPU UUID", "")
    nodes = []
    if minor is not None:
        nodes.append(sources.node(f"/dev/nvidia{minor}", "gpu", nvidia_major(majors), minor, required=True))
    for name, (major, number) in sorted(drm_numbers(sources, address).items()):
        role: Role = "drm-card" if name.startswith("card") else "drm-render"
        nodes.append(sources.node(f"/dev/dri/{name}", role, major, number))
    mode = measured.get("mig_mode")
    persistence = measured.get("persistence_mode")
    return Gpu(
        vendor="nvidia",
        index=index,
        pci_address=address,
        driver=driver,
        minor=minor,
        # Before the GPU is first opened the driver prints question marks in place of the UUID.
        uuid=uuid if _UUID.fullmatch(uuid) else measured.get("uuid"),
        name=facts.get("Model") or measured.get("name"),
        nodes=tuple(nodes),
        mig_enabled=None if mode is None else mode == "Enabled",
        mig_devices=mig_devices(sources, minor, majors, measured) if minor is not None else (),
        memory_total=_bytes(measured.get("memory_total_mib")),
        memory_used=_bytes(measured.get("memory_used_mib")),
        compute_mode=measured.get("compute_mode"),
        persistence_mode=None if persistence is None else persistence == "Enabled",
    )


def nvidia_shared_nodes(sources: Sources, majors: Mapping[str, int]) -> tuple[DeviceNode, ...]:
    """The nodes that all GPUs share. Those a host may do without stand here only where their driver is loaded."""
    major = nvidia_major(majors)
    if major is None:
        return ()
    uvm = majors.get("nvidia-uvm")
    nodes = [
        sources.node("/dev/nvidiactl", "control", majors.get("nvidiactl", major), CONTROL_MINOR, required=True),
        sources.node("/dev/nvidia-uvm", "uvm", uvm, None if uvm is None else 0, required=True),
        sources.node("/dev/nvidia-uvm-tools", "uvm-tools", uvm, None if uvm is None else 1),
    ]
    if "nvidia-modeset" in majors:
        nodes.append(sources.node("/dev/nvidia-modeset", "modeset", majors["nvidia-modeset"], MODESET_MINOR))
    caps = majors.get("nvidia-caps")
    for name in ("config", "monitor"):
        minor = capability_minor(sources, f"{CAPABILITIES}/mig/{name}")
        if minor is not None:
            nodes.append(sources.node(f"/dev/nvidia-caps/nvidia-cap{minor}", "cap", caps, minor))
    if "nvidia-nvswitch" in majors:
        switch = sources.node("/dev/nvidia-nvswitchctl", "nvswitch", majors["nvidia-nvswitch"], 255)
        nodes += [switch] if switch.actual is not None else []  # made only where there are switches
    return tuple(nodes)
