# SPDX-License-Identifier: Apache-2.0
"""What NVIDIA's container runtime reads: device names that went stale, and capabilities that were left out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from gpuiso.doctor.checks.cuda_devices import UUID_STALE
from gpuiso.doctor.checks.cuda_words import gpu_name, inherited
from gpuiso.doctor.finding import Evidence, Finding, Fix, Rule, Severity, Target
from gpuiso.doctor.machine import Machine, Subject
from gpuiso.doctor.registry import machine_check, process_check
from gpuiso.errors import NotFound, Unknown
from gpuiso.gpu.visibility.cuda import VARIABLE as CUDA_VARIABLE
from gpuiso.gpu.visibility.nvidia import driver_capabilities
from gpuiso.host import process

__all__ = ["in_container"]

DRIVER_CAPS = Rule(
    "GPU-DRIVER-CAPS",
    "warning",
    "The container was started without the driver's CUDA libraries",
    "NVIDIA_DRIVER_CAPABILITIES lacks compute (CUDA) or utility (nvidia-smi, NVML), so their files were left out",
    (
        "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/docker-specialized.html",
        "https://github.com/AbdBarho/stable-diffusion-webui-docker/issues/348",
    ),
)

CAPABILITIES = "NVIDIA_DRIVER_CAPABILITIES"
DEVICES = "NVIDIA_VISIBLE_DEVICES"
_UUID = re.compile(r"GPU-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_CONTAINER_CGROUP = re.compile(r"docker|containerd|kubepods|libpod|crio|lxc|machine\.slice|buildkit")
#: What images and people set for work that computes.
_CUDA_SIGNS = (CUDA_VARIABLE, "CUDA_VERSION", "NVIDIA_REQUIRE_CUDA")


def in_container(subject: Subject) -> bool:
    """Whether the process has a mount namespace of its own kind: not PID 1's, or else a container engine's cgroup."""
    host, pid = subject.host, subject.pid
    try:
        own, first = host.readlink(f"/proc/{pid}/ns/mnt"), host.readlink("/proc/1/ns/mnt")
        if own is not None and first is not None:
            return own != first
    except Unknown:
        pass  # the cgroup's name may tell
    return any(_CONTAINER_CGROUP.search(path) for path in process.cgroups(host, pid).values())


def _maps_libcuda(subject: Subject) -> bool:
    return any(path.rsplit("/", 1)[-1].startswith("libcuda.so") for path in subject.mapped_files)


@process_check(DRIVER_CAPS)
def capabilities(subject: Subject) -> Iterator[Finding]:
    """A value replaces the default, utility and compute; who leaves one out does not get its libraries."""
    value = subject.env.get(CAPABILITIES)
    if not value or not subject.machine.nvidia or not in_container(subject):
        return
    granted = driver_capabilities(subject.env).granted
    missing = sorted({"compute", "utility"} - granted)
    if not missing or inherited(subject, CAPABILITIES):
        return
    computes = any(name in subject.env for name in _CUDA_SIGNS)
    severity: Severity = "info"
    if "compute" in missing:
        if not (subject.asked or computes) or "/dev/nvidia-uvm" in subject.holds or _has_libcuda(subject):
            return
        severity = "warning" if computes else "info"
        effect = "libcuda was left out, and CUDA programs find no driver"
    elif subject.asked:
        effect = "nvidia-smi and NVML were left out; CUDA itself works"
    else:
        return
    whole = ",".join(sorted(granted | {"compute", "utility"}))
    yield DRIVER_CAPS.finding(
        f"{CAPABILITIES}={value} in the container of {subject.comm} (pid {subject.pid}) lacks {' and '.join(missing)}:"
        f" {effect}.",
        evidence=[subject.environ_evidence(CAPABILITIES)],
        fix=[
            Fix(
                "Start the container again with the capabilities that it needs",
                f"docker run --gpus all -e {CAPABILITIES}={whole} IMAGE",
            )
        ],
        target=subject.target,
        severity=severity,
        title=None if "compute" in missing else "The container was started without nvidia-smi and NVML",
    )


def _has_libcuda(subject: Subject) -> bool:
    try:
        return _maps_libcuda(subject)
    except (NotFound, Unknown):
        return False  # the variable's own evidence stands


def _configured(container: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """GPU UUIDs in Docker's configuration of a container, and where they stand."""
    for entry in (container.get("Config") or {}).get("Env") or ():
        name, _, value = str(entry).partition("=")
        if name in (DEVICES, CUDA_VARIABLE):
            for uuid in _UUID.findall(value):
                yield f"Config.Env {name}", uuid
    for request in (container.get("HostConfig") or {}).get("DeviceRequests") or ():
        for name in request.get("DeviceIDs") or ():
            for uuid in _UUID.findall(str(name)):
                yield "HostConfig.DeviceRequests DeviceIDs", uuid


@machine_check(UUID_STALE)
def stale_in_docker(machine: Machine) -> Iterator[Finding]:
    """Containers that are fixed to a GPU which is gone: they do not start any more."""
    here = {gpu.uuid.lower() for gpu in machine.nvidia if gpu.uuid is not None}
    if not machine.nvidia:
        return
    for identifier, container in machine.host.docker_containers().items():
        for where, uuid in _configured(container):
            if uuid.lower() in here:
                continue
            if len(here) < len(machine.nvidia):
                raise Unknown("GPU UUIDs", "neither /proc/driver/nvidia nor NVML tells them all")
            yield _stale(machine, identifier, container, where, uuid)
            break


def _stale(machine: Machine, identifier: str, container: dict[str, Any], where: str, uuid: str) -> Finding:
    name = str(container.get("Name") or identifier[:12]).lstrip("/")
    state = container.get("State") or {}
    error = str(state.get("Error") or "")
    running = bool(state.get("Running"))
    evidence = [Evidence(f"docker inspect {name}", f"{where}: {uuid}")]
    if error:
        evidence.append(Evidence(f"docker inspect {name}", f"State.Error: {error}"))
    here = ", ".join(map(gpu_name, machine.nvidia))
    evidence.append(Evidence("/proc/driver/nvidia/gpus/*/information", here))
    failed = uuid in error or "unknown device" in error
    severity: Severity = "warning" if running else "error" if failed else "info"
    what = "runs, but will not start again" if running else "cannot start"
    return UUID_STALE.finding(
        f"Container {name} is configured for {uuid}, which is no GPU of this host ({here}): it {what}.",
        evidence=evidence,
        fix=[
            Fix(
                "Create the container again for a GPU that is here",
                f"docker run --gpus '\"device={machine.nvidia[0].uuid}\"' IMAGE",
            )
        ],
        target=Target(container=identifier),
        severity=severity,
    )
