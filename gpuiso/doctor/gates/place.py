# SPDX-License-Identifier: Apache-2.0
"""The gates of the file system: the path, the mount, the mode."""

from __future__ import annotations

from gpuiso.doctor.gates.model import Gate
from gpuiso.errors import Unknown
from gpuiso.host.mounts import covering_mount, mounts
from gpuiso.host.process import Status, status
from gpuiso.host.protocol import Host, Node
from gpuiso.kernel.capability import CAP_DAC_OVERRIDE

__all__ = ["mode_gate", "nodev_gate", "path_gate"]


_BITS = {"r": 4, "w": 2}


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


def _identity_map(host: Host, pid: int, name: str) -> bool:
    text = host.text(f"/proc/{pid}/{name}")
    return text is not None and text.split() == ["0", "0", "4294967295"]


def _override(host: Host, pid: int, who: Status) -> bool:
    """Whether CAP_DAC_OVERRIDE counts for a node of the host: not from within a user namespace that maps ids."""
    if not who.cap_eff >> CAP_DAC_OVERRIDE & 1:
        return False
    try:
        return _identity_map(host, pid, "uid_map") and _identity_map(host, pid, "gid_map")
    except Unknown:
        return True  # without a recorded map: the initial user namespace, as on a host made by hand


def mode_gate(host: Host, pid: int, path: str, node: Node, access: str) -> Gate:
    """Owner, group and other bits against the process's effective ids, groups and CAP_DAC_OVERRIDE."""
    try:
        who = status(host, pid)
    except Unknown as error:
        return Gate("mode", path, "unknown", "the node's mode", error.message)
    wanted = sum(_BITS[bit] for bit in access if bit in _BITS)
    owner = f"{node.mode:04o} uid {node.uid} gid {node.gid}"
    if who.uid == node.uid:
        granted, kind = node.mode >> 6 & 7, "owner"
    elif who.gid == node.gid or node.gid in who.groups:
        granted, kind = node.mode >> 3 & 7, "group"
    else:
        granted, kind = node.mode & 7, "others"
    if granted & wanted == wanted:
        return Gate("mode", path, "allow", owner, f"its {kind} bits allow {access} to uid {who.uid}")
    if _override(host, pid, who):
        return Gate("mode", path, "allow", owner, "CAP_DAC_OVERRIDE passes over the mode")
    return Gate(
        "mode",
        path,
        "deny",
        owner,
        f"its {kind} bits refuse {access} to uid {who.uid}",
        rule=f"mode {node.mode:04o}",
        errno="EACCES",
    )
