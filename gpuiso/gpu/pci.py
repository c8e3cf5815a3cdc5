# SPDX-License-Identifier: Apache-2.0
"""Display and accelerator functions on the PCI bus, from sysfs (Documentation/ABI/testing/sysfs-bus-pci)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpuiso.errors import Unknown
from gpuiso.host.protocol import Host

__all__ = ["AMD", "INTEL", "NVIDIA", "PciFunction", "display_functions", "drm_numbers", "normal_address"]

NVIDIA, AMD, INTEL = 0x10DE, 0x1002, 0x8086

_DEVICES = "/sys/bus/pci/devices"
_DISPLAY = 0x03  # PCI base class: VGA 0x0300, 3D 0x0302, display 0x0380
_ACCELERATOR = 0x12  # processing accelerators: AMD Instinct
_GPU_DRIVERS = frozenset({"nvidia", "nouveau", "amdgpu", "i915", "xe"})
_ADDRESS = re.compile(r"(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])")


@dataclass(frozen=True, slots=True)
class PciFunction:
    """A PCI function. ``driver`` is the bound driver's name or None; ``device`` the PCI device id."""

    address: str
    vendor: int
    device: int | None
    driver: str | None


def normal_address(text: str) -> str:
    """``00000000:00:06.0`` (NVML) and ``0000:00:06.0`` (sysfs) as sysfs writes it; other text unchanged."""
    match = _ADDRESS.fullmatch(text.strip())
    if match is None:
        return text
    domain, bus, slot, function = match.groups()
    return f"{int(domain or '0', 16):04x}:{bus}:{slot}.{function}".lower()


def _number(host: Host, path: str) -> int | None:
    text = host.text(path)
    try:
        return None if text is None else int(text.strip(), 16)
    except ValueError:
        return None


def _is_gpu(host: Host, base: str, driver: str | None) -> bool:
    try:
        kind = _number(host, f"{base}/class")
    except Unknown:
        return driver in _GPU_DRIVERS  # a record made by hand may leave the class out
    return kind is not None and kind >> 16 in (_DISPLAY, _ACCELERATOR)


def display_functions(host: Host) -> tuple[PciFunction, ...]:
    """GPUs on the bus in address order, whoever drives them. :raises Unknown: sysfs is not readable or recorded."""
    found = []
    for address in host.listdir(_DEVICES) or ():
        base = f"{_DEVICES}/{address}"
        vendor = _number(host, f"{base}/vendor")
        if vendor not in (NVIDIA, AMD, INTEL):
            continue
        link = host.readlink(f"{base}/driver")
        driver = None if link is None else link.rsplit("/", 1)[-1]
        if not _is_gpu(host, base, driver):
            continue
        found.append(PciFunction(address, vendor, _number(host, f"{base}/device"), driver))
    return tuple(found)


def drm_numbers(host: Host, address: str) -> dict[str, tuple[int, int]]:
    """DRM nodes of a PCI function: ``card0`` and ``renderD128`` with their major and minor."""
    base = f"{_DEVICES}/{address}/drm"
    found = {}
    for name in host.listdir(base) or ():
        if not name.startswith(("card", "renderD")):
            continue
        major, separator, minor = (host.text(f"{base}/{name}/dev") or "").strip().partition(":")
        if separator and major.isdigit() and minor.isdigit():
            found[name] = (int(major), int(minor))
    return found
