# SPDX-License-Identifier: Apache-2.0
"""The gate of the node's mode: owner, group, others, access control list and CAP_DAC_OVERRIDE.

Decided as posix_acl_permission() and acl_permission_check() do (fs/posix_acl.c, fs/namei.c). udev gives the user of the
local seat an entry in the list of render nodes (uaccess), so the mode alone would be wrong there.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from gpuiso.doctor.gates.model import Gate
from gpuiso.errors import Unknown
from gpuiso.host.process import Status, status
from gpuiso.host.protocol import Host, Node
from gpuiso.kernel.capability import CAP_DAC_OVERRIDE

__all__ = ["mode_gate"]

_BITS = {"r": 4, "w": 2}
_XATTR = "system.posix_acl_access"
_ACL_VERSION = 2  # include/uapi/linux/posix_acl_xattr.h
_USER, _GROUP_OBJ, _GROUP, _MASK, _OTHER = 0x02, 0x04, 0x08, 0x10, 0x20

_Entries = list[tuple[int, int, int]]


def mode_gate(host: Host, pid: int, path: str, node: Node, access: str) -> Gate:
    """Whether the mode, the access control list or a capability lets the process at the node."""
    try:
        who = status(host, pid)
    except Unknown as error:
        return Gate("mode", path, "unknown", "the node's mode", error.message)
    wanted = sum(_BITS[bit] for bit in access if bit in _BITS)
    owner = f"{node.mode:04o} uid {node.uid} gid {node.gid}"
    kind, granted = _by_list(_acl(host, pid, path), who, node, wanted) or _by_mode(who, node)
    if granted & wanted == wanted:
        return Gate("mode", path, "allow", owner, f"its {kind} allow {access} to uid {who.uid}")
    if _override(host, pid, who):
        return Gate("mode", path, "allow", owner, "CAP_DAC_OVERRIDE passes over the mode")
    says = f"its {kind} refuse {access} to uid {who.uid}"
    return Gate("mode", path, "deny", owner, says, rule=f"mode {node.mode:04o}", errno="EACCES")


def _by_mode(who: Status, node: Node) -> tuple[str, int]:
    if who.uid == node.uid:
        return "owner bits", node.mode >> 6 & 7
    if who.gid == node.gid or node.gid in who.groups:
        return "group bits", node.mode >> 3 & 7
    return "others bits", node.mode & 7


def _acl(host: Host, pid: int, path: str) -> _Entries:
    """Entries of the access control list: tag, permissions, id. Empty if there is none."""
    try:
        data = host.getxattr(f"/proc/{pid}/root{path}", _XATTR)
    except Unknown:
        return []  # records hold none; the mode is what is known
    return list(_entries(data or b""))


def _entries(data: bytes) -> Iterator[tuple[int, int, int]]:
    if len(data) < 4 or struct.unpack_from("<I", data)[0] != _ACL_VERSION:
        return
    for place in range(4, len(data) - 7, 8):
        tag, permissions, number = struct.unpack_from("<HHI", data, place)
        yield tag, permissions, number


def _by_list(acl: _Entries, who: Status, node: Node, wanted: int) -> tuple[str, int] | None:
    """What the list grants, None if it has no entry beyond the mode."""
    if not any(tag in (_USER, _GROUP) for tag, _, _ in acl):
        return None
    if who.uid == node.uid:
        return _by_mode(who, node)
    mask = next((permissions for tag, permissions, _ in acl if tag == _MASK), 7)
    for tag, permissions, number in acl:
        if tag == _USER and number == who.uid:
            return f"list entries for uid {number}", permissions & mask
    mine = who.groups | {who.gid}
    groups = [p & mask for t, p, n in acl if (t == _GROUP and n in mine) or (t == _GROUP_OBJ and node.gid in mine)]
    if groups:
        # One entry of the process's groups must grant all that is wanted.
        return "list entries for its groups", next((p for p in groups if p & wanted == wanted), 0)
    return "list entries for others", next((p for t, p, _ in acl if t == _OTHER), 0)


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
