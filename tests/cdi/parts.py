# SPDX-License-Identifier: Apache-2.0
"""Parts of a generated spec, in a shape that is easy to compare."""

from __future__ import annotations

from gpuiso.cdi.generate import Generated
from gpuiso.cdi.spec import ContainerEdits

__all__ = ["devices", "mounts", "numbers"]


def numbers(edits: ContainerEdits) -> dict[str, str]:
    return {entry.path: f"{entry.type} {entry.major}:{entry.minor}" for entry in edits.device_nodes}


def devices(generated: Generated) -> dict[str, ContainerEdits]:
    return {device.name: device.container_edits for device in generated.spec.devices}


def mounts(generated: Generated) -> dict[str, str]:
    return {mount.container_path: mount.host_path for mount in generated.spec.container_edits.mounts}
