# SPDX-License-Identifier: Apache-2.0
"""Display and accelerator functions on the PCI bus, from sysfs (Documentation/ABI/testing/sysfs-bus-pci)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpuiso.gpu.sources import Sources
from gpuiso.host.decimals import decimal

__all__ = ["AMD", "INTEL", "NVIDIA", "PciFunction", "display_functions", "drm_numbers", "is_address", "normal_address"]

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


def is_address(text: str) -> bool:
    """Whether a text is the whole address of a function; one without a domain is in domain 0."""
    return _ADDRESS.fullmatch(text) is not None


def normal_address(text: str) -> str:
    """``00000000:00:06.0`` (NVML) and ``0000:00:06.0`` (sysfs) as sysfs writes it; other text unchanged."""
    match = _ADDRESS.fullmatch(text.strip())
    if match is None:
        return text
    domain, bus, slot, function = match.groups()
    return f"{int(domain or '0', 16):04x}:{bus}:{slot}.{function}".lower()


def _number(sources: Sources, path: str) -> int | None:
    text = sources.text(path)
    try:
        return None if text is None else int(text.strip(), 16)
    except ValueError:
        return None


def _is_gpu(sources: Sources, base: str, driver: str | None) -> bool:
    kind = _number(sources, f"{base}/class")
    if kind is None:
        return driver in _GPU_DRIVERS  # a record made by hand may leave the class out
    return kind >> 16 in (_DISPLAY, _ACCELERATOR)


def display_functions(sources: Sources) -> tuple[PciFunction, ...]:
    """GPUs on the bus in address order, whoever drives them."""
    found = []
    for address in sources.listdir(_DEVICES):
        base = f"{_DEVICES}/{address}"
        vendor = _number(sources, f"{base}/vendor")
        if vendor not in (NVIDIA, AMD, INTEL):
            continue
        link = sources.readlink(f"{base}/driver")
        driver = None if link is None else link.rsplit("/", 1)[-1]
        if not _is_gpu(sources, base, driver):
            continue
        found.append(PciFunction(address, vendor, _number(sources, f"{base}/device"), driver))
    return tuple(found)


def drm_numbers(sources: Sources, address: str) -> dict[str, tuple[int, int]]:
    """DRM nodes of a PCI function: ``card0`` and ``renderD128`` with their major and minor."""
    base = f"{_DEVICES}/{address}/drm"
    found = {}
    for name in sources.listdir(base):
        if not name.startswith(("card", "renderD")):
            continue
        major, separator, minor = (sources.text(f"{base}/{name}/dev") or "").strip().partition(":")
        numbers = decimal(major), decimal(minor)
        if separator and numbers[0] is not None and numbers[1] is not None:
            found[name] = (numbers[0], numbers[1])
    return found
