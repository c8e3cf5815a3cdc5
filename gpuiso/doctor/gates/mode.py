# SPDX-License-Identifier: Apache-2.0
"""The gate of modes: owner, group, others, access control list and capabilities, of the node and the way to it.

Decided as posix_acl_permission() and acl_permission_check() do (fs/posix_acl.c, fs/namei.c). udev gives the user of the
local seat an entry in the list of render nodes (uaccess), so the mode alone would be wrong there.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from gpuiso.doctor.gates.model import Gate
from gpuiso.errors import Unknown
from gpuiso.host.decimals import decimal
from gpuiso.host.process import Status, status
from gpuiso.host.protocol import Host, Node
from gpuiso.host.way import Way
from gpuiso.kernel.capability import CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_MKNOD

__all__ = ["mode_gate"]

_BITS = {"r": 4, "w": 2}
_SEARCH = 1
_STICKY_SHARED = 0o1002
_ALL_IDS = 4294967295
_XATTR = "system.posix_acl_access"
_ACL_VERSION = 2  # include/uapi/linux/posix_acl_xattr.h
_USER, _GROUP_OBJ, _GROUP, _MASK, _OTHER = 0x02, 0x04, 0x08, 0x10, 0x20

_Entries = list[tuple[int, int, int]]


def mode_gate(host: Host, pid: int, way: Way, node: Node, access: str) -> Gate:
    """Whether modes, access control lists or capabilities let the process at the node, through all directories.

    ``way`` is how the path leads to ``node``.
    """
    try:
        who = status(host, pid)
    except Unknown as error:
        return Gate("mode", way.path, "unknown", "the node's mode", error.message)
    on_the_way = _search(host, pid, way, who) or _links(host, pid, way, who)
    if on_the_way is not None:
        return on_the_way
    if "m" in access and (refused := _mknod(host, pid, way.path, who)) is not None:
        return refused
    wanted = sum(_BITS[bit] for bit in access if bit in _BITS)
    owner = f"{node.mode:04o} uid {node.uid} gid {node.gid}"
    kind, granted = _granted(host, pid, way.path, who, node, wanted)
    if granted & wanted == wanted:
        return Gate("mode", way.path, "allow", owner, f"its {kind} allow {access} to uid {who.fsuid}")
    if (name := _capability(host, pid, who, node, reading=wanted == _BITS["r"])) is not None:
        return Gate("mode", way.path, "allow", owner, f"{name} passes over the mode")
    says = f"its {kind} refuse {access} to uid {who.fsuid}"
    return Gate("mode", way.path, "deny", owner, says, rule=f"mode {node.mode:04o}", errno="EACCES")


def _granted(host: Host, pid: int, path: str, who: Status, node: Node, wanted: int) -> tuple[str, int]:
    return _by_list(_acl(host, pid, path), who, node, wanted) or _by_mode(who, node)


def _search(host: Host, pid: int, way: Way, who: Status) -> Gate | None:
    """The first directory on the way that the process may not search; None if it may search all."""
    for path in way.searched:
        directory = _node(host, pid, path)
        if directory is None or directory.type != "d":
            continue  # not recorded, or gone meanwhile: what is known counts
        kind, granted = _granted(host, pid, path, who, directory, _SEARCH)
        if granted & _SEARCH or _capability(host, pid, who, directory, reading=True) is not None:
            continue
        owner = f"{directory.mode:04o} uid {directory.uid} gid {directory.gid}"
        says = f"a directory on the way, whose {kind} refuse search (x) to uid {who.fsuid}"
        return Gate("mode", path, "deny", owner, says, rule=f"mode {directory.mode:04o}", errno="EACCES")
    return None


def _links(host: Host, pid: int, way: Way, who: Status) -> Gate | None:
    """A link that fs.protected_symlinks forbids to follow (fs/namei.c, may_follow_link())."""
    for path, directory in way.followed:
        link, place = _node(host, pid, path, follow=False), _node(host, pid, directory)
        if link is None or place is None or place.mode & _STICKY_SHARED != _STICKY_SHARED:
            continue
        if link.uid in (who.fsuid, place.uid) or not _protects_links(host):
            continue
        says = f"a link of uid {link.uid} in a sticky directory that all may write to (fs.protected_symlinks)"
        return Gate("mode", path, "deny", "fs.protected_symlinks", says, errno="EACCES")
    return None


def _protects_links(host: Host) -> bool:
    try:
        return (host.text("/proc/sys/fs/protected_symlinks") or "").strip() == "1"
    except Unknown:
        return False


def _mknod(host: Host, pid: int, path: str, who: Status) -> Gate | None:
    """mknod(2) of a device wants CAP_MKNOD in the initial user namespace (fs/namei.c, vfs_mknod())."""
    initial = _in_initial_namespace(host, pid)
    if who.cap_eff >> CAP_MKNOD & 1 and initial:
        return None
    says = "no CAP_MKNOD" if initial else "its capabilities are those of a user namespace, and do not count for mknod"
    return Gate("mode", path, "deny", "CAP_MKNOD", says, errno="EPERM")


def _node(host: Host, pid: int, path: str, *, follow: bool = True) -> Node | None:
    try:
        return (host.stat if follow else host.lstat)(f"/proc/{pid}/root{path}")
    except Unknown:
        return None


def _by_mode(who: Status, node: Node) -> tuple[str, int]:
    if who.fsuid == node.uid:
        return "owner bits", node.mode >> 6 & 7
    if who.fsgid == node.gid or node.gid in who.groups:
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
    if who.fsuid == node.uid:
        return _by_mode(who, node)
    mask = next((permissions for tag, permissions, _ in acl if tag == _MASK), 7)
    for tag, permissions, number in acl:
        if tag == _USER and number == who.fsuid:
            return f"list entries for uid {number}", permissions & mask
    mine = who.groups | {who.fsgid}
    groups = [p & mask for t, p, n in acl if (t == _GROUP and n in mine) or (t == _GROUP_OBJ and node.gid in mine)]
    if groups:
        # One entry of the process's groups must grant all that is wanted.
        return "list entries for its groups", next((p for p in groups if p & wanted == wanted), 0)
    return "list entries for others", next((p for t, p, _ in acl if t == _OTHER), 0)


def _in_initial_namespace(host: Host, pid: int) -> bool:
    return all(
        ids is None or ids == [(0, 0, _ALL_IDS)] for ids in (_ids(host, pid, "uid_map"), _ids(host, pid, "gid_map"))
    )


def _ids(host: Host, pid: int, name: str) -> list[tuple[int, ...]] | None:
    """The lines of a map of ids: inside, outside, count. None without a recorded one, as on a host made by hand."""
    try:
        text = host.text(f"/proc/{pid}/{name}")
    except Unknown:
        return None
    if text is None:
        return None
    lines = [[decimal(word) for word in line.split()] for line in text.splitlines()]
    return [
        tuple(number for number in line if number is not None) for line in lines if len(line) == 3 and None not in line
    ]


def _capability(host: Host, pid: int, who: Status, node: Node, *, reading: bool) -> str | None:
    """The capability that passes over a mode, None if none does.

    It is one of the process's user namespace, and counts where that maps the owner and the group of the file
    (kernel/capability.c, privileged_wrt_inode_uidgid()). ``reading``: to read a file, or to search a directory.
    """
    names = {"CAP_DAC_OVERRIDE": CAP_DAC_OVERRIDE, **({"CAP_DAC_READ_SEARCH": CAP_DAC_READ_SEARCH} if reading else {})}
    held = next((name for name, number in names.items() if who.cap_eff >> number & 1), None)
    if held is None:
        return None
    own = _shares_user_namespace(host, pid)
    mapped = (_maps(_ids(host, pid, "uid_map"), node.uid, own), _maps(_ids(host, pid, "gid_map"), node.gid, own))
    return held if all(mapped) else None


def _shares_user_namespace(host: Host, pid: int) -> bool:
    """Whether gpuiso is in the process's user namespace, so that it meets ids as they are inside of it."""
    try:
        return host.live and host.readlink(f"/proc/{pid}/ns/user") == host.readlink("/proc/self/ns/user")
    except Unknown:
        return False


def _maps(ids: list[tuple[int, ...]] | None, number: int, own: bool) -> bool:
    if ids is None:
        return True
    return any(first <= number < first + count for first, count in ((i if own else o, n) for i, o, n in ids))
