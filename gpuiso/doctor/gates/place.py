# SPDX-License-Identifier: Apache-2.0
"""The gates of the path and of the mount it lies on."""

from __future__ import annotations

from gpuiso.doctor.gates.model import Gate
from gpuiso.errors import Unknown
from gpuiso.host.mounts import covering_mount, mounts
from gpuiso.host.protocol import Host, Node

__all__ = ["nodev_gate", "path_gate"]


def path_gate(path: str, node: Node | None) -> Gate:
    """Does the path lead to a device node in the process's own view?"""
    if node is None:
        return Gate("path", path, "deny", "the mount namespace", "no such path in this view of /dev", errno="ENOENT")
    if node.type not in ("b", "c"):
        kind = {"d": "a directory", "f": "a regular file", "l": "a link", "p": "a FIFO", "s": "a socket"}[node.type]
        return Gate("path", path, "deny", "the mount namespace", f"{kind}, not a device node", errno="ENODEV")
    return Gate("path", path, "allow", "the mount namespace", f"{node.type} {node.major}:{node.minor}")


def nodev_gate(host: Host, pid: int, path: str) -> Gate:
    """A mount with nodev refuses to open any device, whatever its mode; access(2) does not see that."""
    try:
        mount = covering_mount(mounts(host, pid), path)
    except Unknown as error:
        return Gate("nodev", path, "unknown", "the mount table", error.message)
    if mount is None:
        return Gate("nodev", path, "unknown", "the mount table", "no mount covers this path")
    if "nodev" in mount.options:
        return Gate(
            "nodev",
            mount.point,
            "deny",
            f"mount of {mount.source}",
            "mounted with nodev",
            rule="nodev",
            errno="EACCES",
        )
    return Gate("nodev", mount.point, "allow", f"mount of {mount.source}", "devices may be opened on this mount")
