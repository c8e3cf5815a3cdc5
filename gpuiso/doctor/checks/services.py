# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's daemons: the Fabric Manager of NVSwitch systems, and the persistence daemon's socket in containers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from gpuiso.doctor.finding import Evidence, Finding, Fix, Rule, Target
from gpuiso.doctor.machine import Machine
from gpuiso.doctor.registry import machine_check
from gpuiso.errors import Unknown
from gpuiso.host import process
from gpuiso.host.protocol import Host

__all__: list[str] = []

FABRICMANAGER = Rule(
    "GPU-FABRICMANAGER",
    "error",
    "The Fabric Manager of this NVSwitch system does not do its work",
    "there are NVSwitches, and no nv-fabricmanager of the driver's version runs: cuInit fails with 802",
    (
        "https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/index.html",
        "https://github.com/ollama/ollama/issues/12136",
        "https://github.com/pytorch/pytorch/issues/35710",
    ),
)
PERSISTENCED_SOCK = Rule(
    "GPU-PERSISTENCED-SOCK",
    "error",
    "A container cannot start: its /run collides with the persistence daemon's socket",
    "a container has the host's /run mounted, into which the NVIDIA runtime tries to put nvidia-persistenced's socket",
    ("https://github.com/NVIDIA/libnvidia-container/issues/187", "https://github.com/CentaurusInfra/alnair/issues/119"),
)

_SWITCH_CONTROL = "/dev/nvidia-nvswitchctl"
_PROGRAM = "nv-fabricmanager"
_UNIT = "nvidia-fabricmanager.service"
_COMM = 15  # bytes of a process's name that the kernel keeps
_VERSION = re.compile(r"(?i)version\D{0,12}(\d+\.\d+(?:\.\d+)?)")
_LINKS_OFF = re.compile(r"^NvLinkDisable: 1$", re.MULTILINE)
_SOCKET = "nvidia-persistenced/socket"


def _running(host: Host) -> int | None:
    """The Fabric Manager's pid; None if there is certainly none.

    :raises Unknown: not all processes of the host can be seen, and systemd does not tell.
    """
    unseen: Unknown | None = None
    try:
        for pid in host.pids():
            if process.command_name(host, pid) == _PROGRAM[:_COMM]:
                return pid
        if host.live and process.command_name(host, 2) == "kthreadd":
            return None
    except Unknown as error:
        unseen = error
    unit = host.unit(_UNIT)
    if unit is None or unit.get("ActiveState") in ("inactive", "failed"):
        return None
    raise unseen or Unknown(_PROGRAM, f"{_UNIT} is {unit.get('ActiveState')}, but its process is not to be seen")


def _unit_evidence(host: Host) -> list[Evidence]:
    try:
        unit = host.unit(_UNIT)
    except Unknown:
        return []
    if unit is None:
        return [Evidence(_UNIT, "no such unit is loaded")]
    says = f"ActiveState={unit.get('ActiveState')}"
    return [Evidence(_UNIT, says + (f", Result={unit['Result']}" if unit.get("Result") else ""))]


def _installed_version(host: Host) -> str | None:
    """The version of the program on disk, which is not always the one that runs."""
    try:
        result = host.command((_PROGRAM, "--version"))
    except Unknown:
        return None
    match = None if result is None else _VERSION.search(result.stdout + result.stderr)
    return None if match is None else match[1]


@machine_check(FABRICMANAGER)
def fabric_manager(machine: Machine) -> Iterator[Finding]:
    """The Fabric Manager sets up the NVLink fabric; before it has, CUDA does not start."""
    host = machine.host
    if not machine.nvidia or host.stat(_SWITCH_CONTROL) is None:
        return
    if _LINKS_OFF.search(host.text("/proc/driver/nvidia/params") or ""):
        return  # without NVLinks there is no fabric to set up
    pid = _running(host)
    installed = _installed_version(host)
    driver = machine.inventory.driver_version
    differs = installed is not None and driver is not None and installed != driver
    if pid is not None and not differs:
        return
    evidence = [Evidence(_SWITCH_CONTROL, "exists: this host has NVSwitches")]
    if pid is None:
        evidence += _unit_evidence(host) or [Evidence("/proc", f"no process {_PROGRAM}")]
        cause = (
            "This host has NVSwitches, and no Fabric Manager runs: cuInit fails with 802 (system not yet initialized)."
        )
    else:
        cause = f"The Fabric Manager (pid {pid}) runs, but the one installed does not fit the driver."
    if differs:
        cause += f" Version {installed} is installed, the driver is {driver}; it refuses to work with another version."
        evidence.append(Evidence(f"{_PROGRAM} --version", installed or ""))
        evidence.append(Evidence("/proc/driver/nvidia/version", f"driver {driver}"))
    yield FABRICMANAGER.finding(
        cause,
        evidence=evidence,
        fix=list(_fabric_fixes(driver, differs=differs)),
        target=Target(unit=_UNIT) if host.systemd else None,
        severity="error" if pid is None else "warning",
        title="No Fabric Manager runs on this NVSwitch system" if pid is None else None,
    )


def _fabric_fixes(driver: str | None, *, differs: bool) -> Iterator[Fix]:
    exactly = "the Fabric Manager of exactly the driver's version" + (f", {driver}" if driver is not None else "")
    if differs:
        yield Fix(f"Install {exactly}, and hold both packages together")
    else:
        yield Fix(f"If it is not installed, install {exactly}")
    yield Fix("Start it, now and at every boot", "sudo systemctl enable --now nvidia-fabricmanager")
    yield Fix("If it does not stay up, read why", "journalctl -b -u nvidia-fabricmanager --no-pager | tail -n 50")


def _host_run(container: Mapping[str, Any]) -> str | None:
    """The mount that brings the host's /run into a container, as ``SOURCE on DESTINATION``."""
    for mount in container.get("Mounts") or ():
        destination = str(mount.get("Destination", "")).rstrip("/")
        if destination in ("/run", "/var/run"):
            return f"{mount.get('Source', '?')} on {destination}"
    return None


@machine_check(PERSISTENCED_SOCK)
def persistence_socket(machine: Machine) -> Iterator[Finding]:
    """Containers that failed to start over the socket."""
    if not machine.nvidia:
        return
    for name, container in sorted(machine.host.docker_containers().items()):
        state = container.get("State") or {}
        error = str(state.get("Error") or "")
        if _SOCKET not in error or state.get("Running") is True:
            continue
        yield _socket_finding(name, str(container.get("Name") or name).lstrip("/"), error, _host_run(container))


def _socket_finding(container: str, name: str, error: str, mount: str | None) -> Finding:
    evidence = [Evidence(f"docker inspect {container[:12]}", f"State.Error: {' '.join(error.split())[-200:]}")]
    cause = (
        f"Container {name} did not start: the NVIDIA runtime could not put the socket of nvidia-persistenced into it."
    )
    if mount is not None:
        cause += f" The container has {mount}, where a socket of that name is already."
        evidence.append(Evidence(f"docker inspect {container[:12]}", f"Mounts: {mount}"))
    return PERSISTENCED_SOCK.finding(
        cause,
        evidence=evidence,
        fix=[
            Fix("Mount only the directory below /run that the container needs, not /run or /var/run itself"),
            Fix(
                "Or give the container its GPUs by CDI, with nvidia-container-toolkit 1.12 or later (not verified here)"
            ),
        ],
        target=Target(container=container),
    )
