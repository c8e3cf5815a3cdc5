# SPDX-License-Identifier: Apache-2.0
"""What a process has of the GPUs, seen from outside: descriptors, mappings, memory by NVML."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gpuiso.errors import NotFound, Unknown
from gpuiso.gpu.model import Gpu, Inventory
from gpuiso.host.gpu_memory import GpuMemory
from gpuiso.host.process import device_descriptors, mapped_files
from gpuiso.host.protocol import Host

__all__ = ["NVIDIA_NODES", "MemoryView", "Usage", "memory_of", "resident", "usage_of", "used_by_gpu"]

NVIDIA_NODES = ("/dev/nvidia",)

MemoryView = Callable[[], tuple[GpuMemory, ...]]
"""Every GPU's memory, now. Raises Unknown where NVML does not tell."""


@dataclass(frozen=True, slots=True)
class Usage:
    """``descriptors`` by node; ``mapped`` are mapped nodes; ``memory`` is bytes by GPU UUID.

    ``memory`` holds only GPUs on which NVML lists the process; a value is None where it does not tell how much. All
    of it is None where NVML does not answer, and ``why`` then says why.
    """

    descriptors: dict[str, int]
    mapped: frozenset[str]
    memory: dict[str, int | None] | None
    why: str | None = None

    @property
    def nodes(self) -> frozenset[str]:
        """Every NVIDIA node that is open or mapped."""
        return self.mapped | self.descriptors.keys()

    @property
    def any(self) -> bool:
        """Whether something of a GPU is held at all."""
        return bool(self.nodes or self.memory)

    def gpus(self, inventory: Inventory) -> tuple[Gpu, ...]:
        """The GPUs whose memory it holds; without NVML's word, those whose node it has open."""
        found = inventory.of("nvidia")
        if self.memory:
            return tuple(gpu for gpu in found if gpu.uuid in self.memory)
        return tuple(gpu for gpu in found if gpu.node is not None and gpu.node.path in self.nodes)

    def footprint(self) -> int | None:
        """Bytes on all GPUs, None if that is not known: NVML may list the pids of another namespace than ours."""
        if self.memory is None or None in self.memory.values() or (not self.memory and self.nodes):
            return None
        return sum(used or 0 for used in self.memory.values())

    def left(self) -> list[str]:
        """What is still held, a clause each; empty if nothing is."""
        found = [
            f"{count} descriptor{'' if count == 1 else 's'} on {node}"
            for node, count in sorted(self.descriptors.items())
        ]
        found += [f"a mapping of {node}" for node in sorted(self.mapped)]
        for uuid, used in sorted((self.memory or {}).items()):
            found.append(f"{_mib(used)} on {uuid}")
        return found


def _mib(used: int | None) -> str:
    return "memory" if used is None else f"{used >> 20} MiB"


def usage_of(host: Host, pid: int, memory: MemoryView) -> Usage:
    """Looks at one process. :raises NotFound: it ended. :raises Unknown: not permitted to look at it."""
    descriptors = device_descriptors(host, pid, NVIDIA_NODES)
    mapped = frozenset(path for path in mapped_files(host, pid) if path.startswith(NVIDIA_NODES))
    try:
        held = memory_of((pid,), memory())
    except Unknown as error:
        return Usage(descriptors, mapped, None, error.message)
    return Usage(descriptors, mapped, held)


def memory_of(pids: Iterable[int], seen: tuple[GpuMemory, ...]) -> dict[str, int | None]:
    """Bytes by GPU that processes hold together; None for a GPU where NVML does not tell how much."""
    wanted = frozenset(pids)
    found: dict[str, int | None] = {}
    for gpu in seen:
        for pid, used in gpu.processes.items():
            if pid in wanted:
                before = found.get(gpu.uuid, 0)
                found[gpu.uuid] = None if used is None or before is None else before + used
    return found


def used_by_gpu(memory: MemoryView) -> dict[str, int]:
    """Bytes used on each GPU by whomever; empty where NVML does not tell."""
    try:
        return {gpu.uuid: gpu.used for gpu in memory()}
    except Unknown:
        return {}


def resident(host: Host, pid: int) -> int:
    """Bytes of a process in host memory (VmRSS). :raises NotFound: it ended."""
    text = host.text(f"/proc/{pid}/status")
    if text is None:
        raise NotFound(f"no process {pid} on {host.name}")
    for line in text.splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    return 0  # it is ending
