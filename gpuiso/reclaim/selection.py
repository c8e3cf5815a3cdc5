# SPDX-License-Identifier: Apache-2.0
"""Which processes are meant: by pid, container, unit, GPU or user."""

from __future__ import annotations

import pwd
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpuiso.apply.container import container_cgroup
from gpuiso.errors import NotFound, Unknown
from gpuiso.gpu.holders import GPU_NODES
from gpuiso.gpu.model import Inventory
from gpuiso.host.gpu_memory import GpuMemory
from gpuiso.host.process import cgroups, command_name, device_descriptors, mapped_files, require, status
from gpuiso.host.protocol import Host
from gpuiso.reclaim.usage import MemoryView

__all__ = ["Candidate", "Selection", "select", "sharers"]


@dataclass(frozen=True, slots=True)
class Selection:
    """What was asked for; the parts add up."""

    pids: tuple[int, ...] = ()
    container: str | None = None
    unit: str | None = None
    gpus: tuple[str, ...] = ()
    user: str | None = None

    @property
    def empty(self) -> bool:
        return not (self.pids or self.container or self.unit or self.gpus or self.user)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A process: ``gpus`` are UUIDs (or PCI addresses) of GPUs whose nodes it has open, ``memory`` bytes by UUID."""

    pid: int
    comm: str
    user: str
    gpus: tuple[str, ...]
    memory: dict[str, int | None]


def select(host: Host, inventory: Inventory, memory: MemoryView, asked: Selection) -> list[Candidate]:
    """The processes, by pid. Those that were not named by pid hold a GPU, or they would not be meant.

    :raises NotFound: no such process, container, unit, GPU or user, or none of theirs holds a GPU.
    """
    seen = _memory(memory)
    for pid in asked.pids:
        require(host, pid)
    found = set(asked.pids)
    for what, matches in _questions(host, inventory, seen, asked):
        hit = {pid for pid in _holders(host, seen) if matches(pid)}
        if not hit:
            raise NotFound(f"no process of {what} holds a GPU")
        found |= hit
    return [candidate(host, inventory, seen, pid) for pid in sorted(found)]


def candidate(host: Host, inventory: Inventory, seen: tuple[GpuMemory, ...], pid: int) -> Candidate:
    """What one process holds."""
    nodes = _nodes(host, pid)
    gpus = [g.uuid or g.pci_address for g in inventory.gpus if nodes & {n.path for n in g.nodes}]
    held = {gpu.uuid: gpu.processes[pid] for gpu in seen if pid in gpu.processes}
    try:
        uid = status(host, pid).uid
    except (NotFound, Unknown):
        return Candidate(pid, command_name(host, pid), "?", tuple(gpus), held)
    return Candidate(pid, command_name(host, pid), user_name(uid), tuple(gpus), held)


def sharers(host: Host, inventory: Inventory, memory: MemoryView, gpus: Sequence[str]) -> list[Candidate]:
    """Everyone who has one of these GPUs open or memory on it."""
    seen = _memory(memory)
    found = [candidate(host, inventory, seen, pid) for pid in sorted(_holders(host, seen))]
    wanted = set(gpus)
    return [who for who in found if wanted & {*who.gpus, *who.memory}]


def _memory(memory: MemoryView) -> tuple[GpuMemory, ...]:
    try:
        return memory()
    except Unknown:
        return ()


def _nodes(host: Host, pid: int) -> frozenset[str]:
    try:
        open_nodes = device_descriptors(host, pid, GPU_NODES).keys()
        mapped = {path for path in mapped_files(host, pid) if path.startswith(GPU_NODES)}
    except (NotFound, Unknown):
        return frozenset()
    return frozenset(open_nodes | mapped)


def _holders(host: Host, seen: tuple[GpuMemory, ...]) -> set[int]:
    holders = {pid for pid in host.pids() if _nodes(host, pid)}
    return holders | {pid for gpu in seen for pid in gpu.processes}


_Question = tuple[str, Callable[[int], bool]]


def _questions(host: Host, inventory: Inventory, seen: tuple[GpuMemory, ...], asked: Selection) -> list[_Question]:
    found: list[_Question] = []
    if asked.container is not None:
        home = container_cgroup(host, asked.container).rstrip("/")
        found.append((f"container {asked.container}", lambda pid: _in_cgroup(host, pid, _is_below(home))))
    if asked.unit is not None:
        unit = asked.unit if "." in asked.unit else f"{asked.unit}.service"
        found.append((f"unit {unit}", lambda pid: _in_cgroup(host, pid, lambda path: unit in path.split("/"))))
    if asked.user is not None:
        uid = _uid(asked.user)
        found.append((f"user {asked.user}", lambda pid: _owned_by(host, pid, uid)))
    for uuid in asked.gpus:
        found.append((f"GPU {uuid}", _on_gpu(host, inventory, seen, uuid)))
    return found


def _in_cgroup(host: Host, pid: int, matches: Callable[[str], bool]) -> bool:
    try:
        return any(matches(path) for path in set(cgroups(host, pid).values()))
    except (NotFound, Unknown):
        return False


def _is_below(home: str) -> Callable[[str], bool]:
    return lambda path: path == home or path.startswith(f"{home}/")


def _owned_by(host: Host, pid: int, uid: int) -> bool:
    try:
        return status(host, pid).uid == uid
    except (NotFound, Unknown):
        return False


def _uid(user: str) -> int:
    if user.isdigit():
        return int(user)
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError as error:
        raise NotFound(f"no user {user} on this host") from error


def user_name(uid: int) -> str:
    """The name of a user id, or its number."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _on_gpu(host: Host, inventory: Inventory, seen: tuple[GpuMemory, ...], uuid: str) -> Callable[[int], bool]:
    gpu = next((gpu for gpu in inventory.gpus if uuid in (gpu.uuid, gpu.pci_address)), None)
    if gpu is None:
        there = ", ".join(gpu.uuid or gpu.pci_address for gpu in inventory.gpus) or "none"
        raise NotFound(f"no GPU {uuid} on {host.name}", hint=f"GPUs here: {there}")
    # With memory NVML tells who works on it; an open node alone does not say so: CUDA opens all of them.
    users = {pid for memory in seen if memory.uuid == gpu.uuid for pid in memory.processes}
    if seen:
        return users.__contains__
    nodes = {node.path for node in gpu.nodes}
    return lambda pid: bool(nodes & _nodes(host, pid))
