# SPDX-License-Identifier: Apache-2.0
"""AMD and Intel GPUs: DRM nodes from sysfs, and AMD's /dev/kfd with its topology.

A process uses such a GPU through its render node; ROCm opens /dev/kfd as well, and amdkfd asks the device cgroup for
the render node before it lets a queue be made (kfd_devcgroup_check_permission).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuiso.gpu.model import DeviceNode, Gpu, Role, Vendor
from gpuiso.gpu.pci import AMD, INTEL, PciFunction, drm_numbers
from gpuiso.gpu.sources import Sources
from gpuiso.host.decimals import decimal

__all__ = ["drm_gpus", "kfd_node"]

_TOPOLOGY = "/sys/class/kfd/kfd/topology/nodes"
_DRIVERS: Mapping[int, tuple[Vendor, frozenset[str]]] = {
    AMD: ("amd", frozenset({"amdgpu"})),
    INTEL: ("intel", frozenset({"i915", "xe"})),
}


def kfd_node(sources: Sources, majors: Mapping[str, int]) -> tuple[DeviceNode, ...]:
    """/dev/kfd where amdkfd is there, else nothing."""
    major = majors.get("kfd")
    if major is None:
        return ()
    return (sources.node("/dev/kfd", "control", major, 0, required=True),)


def drm_gpus(sources: Sources, functions: Sequence[PciFunction]) -> tuple[Gpu, ...]:
    """AMD and Intel GPUs in PCI order, each vendor counted by itself."""
    uuids = _amd_uuids(sources) if any(function.vendor == AMD for function in functions) else {}
    gpus = []
    counts: dict[Vendor, int] = {}
    for function in functions:
        if function.vendor not in _DRIVERS:
            continue
        vendor, drivers = _DRIVERS[function.vendor]
        index = None
        if function.driver in drivers:
            index = counts.get(vendor, 0)
            counts[vendor] = index + 1
        gpus.append(_gpu(sources, function, vendor, index, uuids))
    return tuple(gpus)


def _gpu(sources: Sources, function: PciFunction, vendor: Vendor, index: int | None, uuids: Mapping[int, str]) -> Gpu:
    base = f"/sys/bus/pci/devices/{function.address}"
    nodes = []
    render: int | None = None
    for name, (major, minor) in sorted(drm_numbers(sources, function.address).items()):
        is_render = name.startswith("renderD")
        role: Role = "drm-render" if is_render else "drm-card"
        path = f"/dev/dri/{name}"
        nodes.append(sources.node(path, role, major, minor, required=is_render))
        if is_render:
            render = minor
    return Gpu(
        vendor=vendor,
        index=index,
        pci_address=function.address,
        driver=function.driver,
        minor=render,
        uuid=None if render is None else uuids.get(render),
        name=(_text(sources, f"{base}/product_name") or None) if vendor == "amd" else None,
        nodes=tuple(nodes),
        memory_total=_number(sources, f"{base}/mem_info_vram_total") if vendor == "amd" else None,
        memory_used=_number(sources, f"{base}/mem_info_vram_used") if vendor == "amd" else None,
    )


def _text(sources: Sources, path: str) -> str | None:
    text = sources.text(path)
    return None if text is None else text.strip()


def _number(sources: Sources, path: str) -> int | None:
    text = _text(sources, path)
    return None if text is None else decimal(text)


def _amd_uuids(sources: Sources) -> dict[int, str]:
    """``GPU-`` and the unique id in hex, as ROCr names a GPU, by the minor of its render node."""
    found: dict[int, str] = {}
    for name in sources.listdir(_TOPOLOGY):
        fields = dict(
            line.split(" ", 1)
            for line in (_text(sources, f"{_TOPOLOGY}/{name}/properties") or "").splitlines()
            if " " in line
        )
        unique, minor = decimal(fields.get("unique_id", "")), decimal(fields.get("drm_render_minor", ""))
        if unique and minor is not None:
            found[minor] = f"GPU-{unique:016x}"
    return found
