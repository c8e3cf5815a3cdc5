# SPDX-License-Identifier: Apache-2.0
"""Mounts by descriptor: fsopen(2), fsconfig(2), fsmount(2), move_mount(2), open_tree(2), mount_setattr(2), umount2(2).

No path is resolved twice, so nobody can put a link in the way. The first five came together, since Linux kernel
commit a07b20004793 ("vfs: syscall: Add open_tree(2) to reference or clone a mount") (in v5.2).
"""

from __future__ import annotations

import ctypes
import os
import struct

from gpuiso.kernel.libc import libc, syscall

__all__ = [
    "AT_EMPTY_PATH",
    "MNT_DETACH",
    "MOUNT_ATTR_NODEV",
    "MOUNT_ATTR_NOEXEC",
    "MOUNT_ATTR_NOSUID",
    "MOUNT_ATTR_RDONLY",
    "fchmodat2",
    "fsmount_new",
    "mount_setattr",
    "move_mount",
    "open_tree_clone",
    "umount2",
]

AT_EMPTY_PATH = 0x1000
MNT_DETACH = 2
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV, MOUNT_ATTR_NOEXEC = 1, 2, 4, 8

_NR_OPEN_TREE, _NR_MOVE_MOUNT, _NR_FSOPEN, _NR_FSCONFIG, _NR_FSMOUNT = 428, 429, 430, 431, 432
_NR_MOUNT_SETATTR, _NR_FCHMODAT2 = 442, 452
_CLOEXEC = 1  # FSOPEN_CLOEXEC, FSMOUNT_CLOEXEC
_OPEN_TREE_CLONE = 1
_FSCONFIG_CMD_CREATE = 6
_BOTH_EMPTY = 0x04 | 0x40  # MOVE_MOUNT_F_EMPTY_PATH, MOVE_MOUNT_T_EMPTY_PATH
_MOUNT_ATTR = struct.Struct("=QQQQ")


def fsmount_new(fstype: str, attributes: int) -> int:
    """A new, empty file system that is mounted nowhere yet; a descriptor of its root.

    :raises OSError: ENODEV no such file system; EPERM without CAP_SYS_ADMIN; ENOSYS before v5.2.
    """
    context = syscall("fsopen", _NR_FSOPEN, fstype.encode(), _CLOEXEC)
    try:
        syscall("fsconfig(CMD_CREATE)", _NR_FSCONFIG, context, _FSCONFIG_CMD_CREATE, None, None, 0)
        return syscall("fsmount", _NR_FSMOUNT, context, _CLOEXEC, attributes)
    finally:
        os.close(context)


def open_tree_clone(dirfd: int, path: str) -> int:
    """A copy of the mount at ``path``, seen from there, that is mounted nowhere yet.

    :raises OSError: EINVAL where the mount is not in the caller's namespace.
    """
    return syscall(
        "open_tree", _NR_OPEN_TREE, dirfd, os.fsencode(path), _OPEN_TREE_CLONE | os.O_CLOEXEC | AT_EMPTY_PATH, path=path
    )


def move_mount(from_fd: int, to_fd: int) -> None:
    """Mounts what ``from_fd`` is the root of on what ``to_fd`` is."""
    syscall("move_mount", _NR_MOVE_MOUNT, from_fd, b"", to_fd, b"", _BOTH_EMPTY)


def mount_setattr(fd: int, attr_set: int) -> None:
    """Adds attributes to the mount whose root ``fd`` is (in v5.12)."""
    attr = _MOUNT_ATTR.pack(attr_set, 0, 0, 0)
    syscall("mount_setattr", _NR_MOUNT_SETATTR, fd, b"", AT_EMPTY_PATH, attr, len(attr))


def umount2(path: str, flags: int) -> None:
    """Takes the topmost mount off ``path``."""
    if libc.umount2(os.fsencode(path), flags) < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"umount2: {os.strerror(code)}", path)


def fchmodat2(fd: int, mode: int) -> None:
    """The mode of what an O_PATH descriptor is of, without opening it.

    Since Linux kernel commit 09da082b07bb ("fs: Add fchmodat2()") (in v6.6): ENOSYS before.
    """
    syscall("fchmodat2", _NR_FCHMODAT2, fd, b"", mode, AT_EMPTY_PATH)
