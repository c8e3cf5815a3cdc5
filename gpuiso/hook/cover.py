# SPDX-License-Identifier: Apache-2.0
"""Covers a file of the container by another one, read-only, through a bind mount of a file in memory."""

from __future__ import annotations

import os

from gpuiso.hook.rootfs import Rootfs
from gpuiso.kernel.mount_fd import (
    MNT_DETACH,
    MOUNT_ATTR_NODEV,
    MOUNT_ATTR_NOEXEC,
    MOUNT_ATTR_NOSUID,
    MOUNT_ATTR_RDONLY,
    fsmount_new,
    mount_setattr,
    move_mount,
    open_tree_clone,
    umount2,
)

__all__ = ["cover"]

_CAUTIOUS = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC
_FILE = "content"


def cover(rootfs: Rootfs, path: str, data: bytes) -> bool:
    """Whether there is a file at ``path`` in the container; it now reads as ``data``."""
    try:
        target = rootfs.open(path, os.O_PATH)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        mount = _file_in_memory(rootfs, path.rpartition("/")[0], data)
        try:
            move_mount(mount, target)
        finally:
            os.close(mount)
    finally:
        os.close(target)
    rootfs.undo.on_failure(lambda: _uncover(rootfs, path))
    return True


def _file_in_memory(rootfs: Rootfs, directory: str, data: bytes) -> int:
    """A mount of one file, mounted nowhere yet.

    Before v6.15 only a mount that is in the tree can be cloned, so the file system that holds the file is mounted
    on ``directory`` for as long as that takes. Nobody is in the container yet.
    """
    memory = fsmount_new("tmpfs", _CAUTIOUS)
    try:
        fd = os.open(_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444, dir_fd=memory)
        with open(fd, "wb", buffering=0) as file:
            file.write(data)
        place = rootfs.open(directory, os.O_PATH | os.O_DIRECTORY)
        try:
            move_mount(memory, place)
        finally:
            os.close(place)
        try:
            clone = open_tree_clone(memory, _FILE)
        finally:
            # By descriptor: "." is the root of the mount, whatever became of the path.
            os.fchdir(memory)
            umount2(".", MNT_DETACH)
            os.chdir("/")
        try:
            mount_setattr(clone, _CAUTIOUS | MOUNT_ATTR_RDONLY)
        except BaseException:
            os.close(clone)
            raise
        return clone
    finally:
        os.close(memory)


def _uncover(rootfs: Rootfs, path: str) -> None:
    fd = rootfs.open(path, os.O_PATH)
    try:
        umount2(f"/proc/self/fd/{fd}", MNT_DETACH)
    finally:
        os.close(fd)
