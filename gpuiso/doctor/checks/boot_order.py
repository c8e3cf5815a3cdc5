# SPDX-License-Identifier: Apache-2.0
"""Containers that were started at boot before the driver's nodes existed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from shlex import quote
from typing import Any

from gpuiso.doctor.finding import Evidence, Finding, Fix, Rule, Target
from gpuiso.doctor.machine import Machine
from gpuiso.doctor.registry import machine_check
from gpuiso.gpu.majors import nvidia_major

__all__: list[str] = []

BOOT_ORDER = Rule(
    "GPU-BOOT-ORDER",
    "error",
    "A container was started before the GPU nodes existed",
    "a container failed at boot because a node of NVIDIA's driver, which exists by now, did not exist yet",
    (
        "https://github.com/NVIDIA/nvidia-docker/issues/526",
        "https://github.com/NVIDIA/k8s-device-plugin/issues/222",
    ),
)

_NO_NODE = re.compile(r"(/dev/nvidia[\w./-]*)\"?: no such file or directory", re.IGNORECASE)
_BEFORE_DOCKER = (
    r"printf '[Unit]\nWants=nvidia-persistenced.service\nAfter=nvidia-persistenced.service\n\n"
    r"[Service]\nExecStartPre=-/usr/bin/nvidia-modprobe -c=0 -u\n' |"
    " sudo tee /etc/systemd/system/docker.service.d/10-nvidia.conf && sudo systemctl daemon-reload"
)


@machine_check(BOOT_ORDER)
def started_too_early(machine: Machine) -> Iterator[Finding]:
    """What Docker remembers of a failed start, where the node it missed is there now."""
    if not machine.nvidia or nvidia_major(machine.majors) is None:
        return
    for identity, container in sorted(machine.host.docker_containers().items()):
        state = container.get("State") or {}
        match = _NO_NODE.search(str(state.get("Error") or ""))
        if match is None or state.get("Running"):
            continue
        node = machine.host.stat(match[1])
        if node is not None:
            yield _finding(identity, container, match)


def _finding(identity: str, container: dict[str, Any], match: re.Match[str]) -> Finding:
    name = str(container.get("Name") or identity[:12]).lstrip("/")
    return BOOT_ORDER.finding(
        f"The container {name} could not start because {match[1]} did not exist then. It exists now: Docker was faster"
        " than the driver.",
        evidence=[
            Evidence(f"docker inspect {name}: State.Error", match[0]),
            Evidence(match[1], "exists now"),
        ],
        fix=[
            Fix("Start it now", f"docker start {quote(name)}"),
            Fix(
                "At the next boot, have the nodes made before Docker starts (not tried here)",
                f"sudo mkdir -p /etc/systemd/system/docker.service.d && {_BEFORE_DOCKER}",
            ),
        ],
        target=Target(container=identity),
    )
