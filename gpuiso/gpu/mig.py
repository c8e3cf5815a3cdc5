# SPDX-License-Identifier: Apache-2.0
"""MIG compute instances and their capability nodes.

/proc/driver/nvidia/capabilities/gpuMINOR/mig/giG/access and .../giG/ciC/access name the minors of the two nvidia-caps
nodes that open an instance (MIG User Guide, "Device Nodes and Capabilities").
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gpuiso.gpu.model import DeviceNode, MigDevice
from gpuiso.gpu.sources import Sources
from gpuiso.host.decimals import decimal

__all__ = ["CAPABILITIES", "capability_minor", "mig_devices"]

CAPABILITIES = "/proc/driver/nvidia/capabilities"


def capability_minor(sources: Sources, path: str) -> int | None:
    """The minor of the nvidia-caps node that stands for a capability file, None if there is no such capability."""
    for line in (sources.text(path) or "").splitlines():
        name, _, value = line.partition(":")
        if name == "DeviceFileMinor":
            return decimal(value.strip())
    return None


def _numbered(names: tuple[str, ...], prefix: str) -> list[int]:
    matches = (re.fullmatch(rf"{prefix}(\d{{1,9}})", name) for name in names)
    return sorted(int(match[1]) for match in matches if match is not None)


def _node(sources: Sources, file: str, major: int | None) -> tuple[DeviceNode, ...]:
    minor = capability_minor(sources, file)
    if minor is None:
        return ()
    path = f"/dev/nvidia-caps/nvidia-cap{minor}"
    return (sources.node(path, "cap", major, minor, required=True),)


def mig_devices(
    sources: Sources, minor: int, majors: Mapping[str, int], measured: Mapping[str, Any]
) -> tuple[MigDevice, ...]:
    """The compute instances of the GPU with this minor; UUIDs and profiles where NVML told them.

    ``measured`` is that GPU's object of tools/nvml.json, or empty.
    """
    base = f"{CAPABILITIES}/gpu{minor}/mig"
    told = {(m.get("gpu_instance"), m.get("compute_instance")): m for m in measured.get("mig_devices") or ()}
    major = majors.get("nvidia-caps")
    places = [
        (gpu_instance, compute_instance)
        for gpu_instance in _numbered(sources.listdir(base), "gi")
        for compute_instance in _numbered(sources.listdir(f"{base}/gi{gpu_instance}"), "ci")
    ]
    # A record or an old driver may lack one of the two sources.
    places += [place for place in told if None not in place and place not in places]
    found = []
    for gpu_instance, compute_instance in sorted(places):
        facts = told.get((gpu_instance, compute_instance), {})
        instance = f"{base}/gi{gpu_instance}"
        nodes = _node(sources, f"{instance}/access", major) + _node(
            sources, f"{instance}/ci{compute_instance}/access", major
        )
        found.append(MigDevice(facts.get("uuid"), gpu_instance, compute_instance, facts.get("profile"), nodes))
    return tuple(found)
