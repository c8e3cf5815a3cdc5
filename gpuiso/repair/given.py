# SPDX-License-Identifier: Apache-2.0
"""What shows that a container was given a GPU.

That a node is in its /dev shows nothing: most engines let a container make nodes (CAP_MKNOD), and it is the device
filter that keeps it from opening them. A repair must not hand out what nobody gave.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from gpuiso.devfilter.levels import ProgramVerdict
from gpuiso.doctor.machine import Machine
from gpuiso.errors import NotFound, Unknown
from gpuiso.gpu.visibility.nvidia import nvidia_visible
from gpuiso.host.containers import Container
from gpuiso.host.mounts import mounts
from gpuiso.repair.nodes import GpuNode

__all__ = ["by_program", "signs"]

_VARIABLE = "NVIDIA_VISIBLE_DEVICES"
_CDI = "nvidia.com/gpu="


def signs(machine: Machine, container: Container, nodes: Sequence[GpuNode]) -> dict[str, str]:
    """For each path that something shows to be the container's, what shows it."""
    found: dict[str, str] = {}
    for sources in (_by_engine, _by_config, _by_mount):
        try:
            for path, sign in sources(machine, container, nodes):
                found.setdefault(path, sign)
        except (NotFound, Unknown):
            continue  # what cannot be read shows nothing
    return found


def by_program(node: GpuNode, programs: Iterable[ProgramVerdict]) -> str | None:
    """A program beside the one that denies, which allows just this device: the grant that was overruled."""
    for program in programs:
        rule = program.rule or ""
        if program.value == "allow" and rule.startswith(f"allow {node.type} {node.major}:"):
            return f"program {program.program.id} of its cgroup says {rule!r}"
    return None


_Signs = Iterator[tuple[str, str]]


def _by_engine(machine: Machine, container: Container, nodes: Sequence[GpuNode]) -> _Signs:
    """Docker's DeviceRequests (--gpus, CDI) and Devices."""
    if container.engine != "docker":
        return
    host_config = _mapping(machine.host.docker_containers().get(container.id)).get("HostConfig")
    for request in _mappings(_mapping(host_config).get("DeviceRequests")):
        value = _asked(request)
        if value is not None:
            yield from _named(machine, nodes, value, f"Docker's DeviceRequests ask for {value}")
    for device in _mappings(_mapping(host_config).get("Devices")):
        for node in nodes:
            if device.get("PathOnHost") == node.path:
                yield node.path, "Docker's HostConfig.Devices has it"


def _asked(request: Mapping[str, Any]) -> str | None:
    """A request as NVIDIA_VISIBLE_DEVICES would say it, None if it is for no GPU of NVIDIA's."""
    names = [str(name) for name in request.get("DeviceIDs") or ()]
    words = {str(word) for group in request.get("Capabilities") or () for word in group}
    if request.get("Driver") == "cdi":
        return ",".join(name.removeprefix(_CDI) for name in names if name.startswith(_CDI)) or None
    if request.get("Driver") not in (None, "", "nvidia") or not words & {"gpu", "nvidia"}:
        return None
    count = request.get("Count")
    if names:
        return ",".join(names)
    return "all" if count == -1 else ",".join(map(str, range(count))) if isinstance(count, int) and count else None


def _named(machine: Machine, nodes: Sequence[GpuNode], value: str, sign: str) -> _Signs:
    """The nodes of the GPUs that a value of NVIDIA_VISIBLE_DEVICES names."""
    injection = nvidia_visible(machine.nvidia, {_VARIABLE: value})
    paths = {gpu.node for gpu in injection.gpus if gpu.mig is None}
    for gpu in injection.gpus:
        if gpu.mig is not None:
            paths |= _of_mig(machine, gpu.physical, gpu.mig)
    for node in nodes:
        if node.path in paths:
            yield node.path, sign


def _of_mig(machine: Machine, index: int, name: str) -> set[str | None]:
    for gpu in machine.nvidia:
        for mig in gpu.mig_devices:
            if gpu.index == index and name in (mig.uuid, f"{mig.gpu_instance}/{mig.compute_instance}"):
                return {gpu.node.path if gpu.node is not None else None, *(node.path for node in mig.nodes)}
    return set()


def _by_config(machine: Machine, container: Container, nodes: Sequence[GpuNode]) -> _Signs:
    """The OCI config: its devices and mounts, and the variable where NVIDIA's runtime or hook reads it."""
    config = _config(machine, container)
    linux = _mapping(config.get("linux"))
    listed = {device.get("path") for device in _mappings(linux.get("devices"))}
    mounted = {each.get("source") for each in _mappings(config.get("mounts"))}
    for node in nodes:
        if node.path in listed:
            yield node.path, f"linux.devices of {container.config} has it"
        elif node.path in mounted:
            yield node.path, f"mounts of {container.config} has it"
    value = (container.env or {}).get(_VARIABLE)
    if value and _reads_variable(container, config):
        yield from _named(machine, nodes, value, f"it was started with {_VARIABLE}={value}")


def _config(machine: Machine, container: Container) -> Mapping[str, Any]:
    if container.config is None:
        return {}
    try:
        return _mapping(json.loads(machine.host.text(container.config) or "null"))
    except ValueError:
        return {}


def _reads_variable(container: Container, config: Mapping[str, Any]) -> bool:
    """Whether NVIDIA's runtime made the container: an image alone can set the variable, and gives nothing by it."""
    hooks = [hook for kind in _mapping(config.get("hooks")).values() for hook in _mappings(kind)]
    return "nvidia" in (container.runtime or "") or any("nvidia" in str(hook.get("path")) for hook in hooks)


def _by_mount(machine: Machine, container: Container, nodes: Sequence[GpuNode]) -> _Signs:
    """Nodes bound from the host's own devtmpfs, as hooks do: a container cannot mount that by itself."""
    if container.pid is None:
        return
    for mount in mounts(machine.host, container.pid):
        for node in nodes:
            if mount.point == node.path and mount.fstype == "devtmpfs":
                yield node.path, f"{node.path} of the host is bound into it"


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []
