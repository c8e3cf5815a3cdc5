# SPDX-License-Identifier: Apache-2.0
"""The gates of the path and of the mount it lies on."""

from __future__ import annotations

from gpuiso.doctor.gates.model import USER_NAMESPACE_MOUNT, Gate
from gpuiso.errors import Unknown
from gpuiso.host.mount_owner import of_user_namespace
from gpuiso.host.mounts import covering_mount, mount_of_id, mounts
from gpuiso.host.protocol import Host, Node

__all__ = ["nodev_gate", "path_gate"]


def path_gate(path: str, node: Node | None) -> Gate:
    """Does the path lead to a device node in the process's own view?"""
    if node is None:
        return Gate("path", path, "deny", "the mount namespace", "no such path in this view of /dev", errno="ENOENT")
    if node.type != "d" and path.endswith(("/", "/.", "/..")):
        return Gate(
            "path", path, "deny", "the mount namespace", "no directory, as the path's end asks", errno="ENOTDIR"
        )
    if node.type not in ("b", "c"):
        kind = {"d": "a directory", "f": "a regular file", "l": "a link", "p": "a FIFO", "s": "a socket"}[node.type]
        return Gate("path", path, "deny", "the mount namespace", f"{kind}, not a device node", errno="ENODEV")
    return Gate("path", path, "allow", "the mount namespace", f"{node.type} {node.major}:{node.minor}")


def nodev_gate(host: Host, pid: int, path: str, node: Node) -> Gate:
    """A mount with nodev refuses to open any device, whatever its mode; access(2) does not see that.

    ``path`` has no links left. On a live host the node says on which mount it lies.
    """
    try:
        table = mounts(host, pid)
    except Unknown as error:
        return Gate("nodev", path, "unknown", "the mount table", error.message)
    mount = covering_mount(table, path) if node.mount is None else mount_of_id(table, node.mount)
    nodev = node.nodev if node.nodev is not None or mount is None else "nodev" in mount.options
    where, by = (path, "the mount it lies on") if mount is None else (mount.point, f"mount of {mount.source}")
    if nodev:
        return Gate("nodev", where, "deny", by, "mounted with nodev", rule="nodev", errno="EACCES")
    if nodev is None:
        return Gate("nodev", path, "unknown", "the mount table", "no mount covers this path")
    foreign = False if mount is None else of_user_namespace(host, pid, mount)
    if foreign:
        says = "mounted from within a user namespace, which counts as nodev"
        return Gate("nodev", where, "deny", by, says, rule=USER_NAMESPACE_MOUNT, errno="EACCES")
    if foreign is None:
        says = "whether it was mounted from within a user namespace, which counts as nodev, cannot be told"
        return Gate("nodev", where, "unknown", by, says)
    return Gate("nodev", where, "allow", by, "devices may be opened on this mount")
