# SPDX-License-Identifier: Apache-2.0
"""The GPU nodes of a host, and those that are in a container's /dev."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gpuiso.doctor.machine import Machine
from gpuiso.host.protocol import Host, Node
from gpuiso.policy.glob import device_nodes
from gpuiso.policy.rule import DeviceType

__all__ = ["GpuNode", "gpu_nodes", "other_nodes"]

_PATTERNS = ("/dev/nvidia*", "/dev/nvidia-caps/*", "/dev/kfd", "/dev/dri/*")
_NEEDED = re.compile(r"/dev/(nvidia\d+|nvidiactl|nvidia-uvm|kfd|dri/renderD\d+)")
_OWN = re.compile(r"/dev/(nvidia\d+|dri/(renderD|card)\d+|nvidia-caps/.*)")
_MOST = 256  # a /dev with more entries than that is nobody's device list
_DEPTH = 2


@dataclass(frozen=True, slots=True)
class GpuNode:
    """A node of a GPU's driver, by the numbers that the driver registered, else those of the host's own node.

    ``needed`` tells whether compute work fails without it; ``shared`` whether it stands for no single GPU.
    """

    path: str
    type: DeviceType
    major: int
    minor: int
    needed: bool
    shared: bool

    @property
    def numbers(self) -> str:
        return f"{self.type} {self.major}:{self.minor}"

    def is_at(self, node: Node) -> bool:
        """Whether an entry of some /dev is this device."""
        return (node.type, node.major, node.minor) == (self.type, self.major, self.minor)


def gpu_nodes(machine: Machine) -> tuple[GpuNode, ...]:
    """Every GPU node there is on the host, by path. :raises Unknown: /dev cannot be looked at."""
    found: dict[str, GpuNode] = {}
    for pattern in _PATTERNS:
        for path, node in device_nodes(machine.host, pattern):
            found[path] = _gpu_node(path, "b" if node.type == "b" else "c", node.major or 0, node.minor or 0)
    inventory = machine.inventory
    registered = [node for gpu in inventory.gpus for node in gpu.nodes]
    registered += [node for gpu in inventory.gpus for mig in gpu.mig_devices for node in mig.nodes]
    for known in (*registered, *inventory.shared_nodes):
        if known.major is not None and known.minor is not None:
            found[known.path] = _gpu_node(known.path, "c", known.major, known.minor)
    return tuple(found[path] for path in sorted(found))


def _gpu_node(path: str, kind: DeviceType, major: int, minor: int) -> GpuNode:
    needed = _NEEDED.fullmatch(path) is not None
    return GpuNode(path, kind, major, minor, needed, shared=_OWN.fullmatch(path) is None)


def other_nodes(host: Host, pid: int, gpus: tuple[GpuNode, ...]) -> Iterator[tuple[str, Node]]:
    """The device nodes in a process's /dev that are no GPU's, by path in its own view."""
    known = {node.path for node in gpus}
    pending = [("/dev", 0)]
    looked = 0
    for directory, depth in pending:  # grows while it is gone through
        for name in host.listdir(f"/proc/{pid}/root{directory}") or ():
            looked += 1
            if looked > _MOST:
                return
            path = f"{directory}/{name}"
            node = host.lstat(f"/proc/{pid}/root{path}")
            if node is None:
                continue
            if node.type == "d" and depth < _DEPTH and path != "/dev/pts":
                pending.append((path, depth + 1))
            elif node.type in ("b", "c") and path not in known:
                yield path, node
