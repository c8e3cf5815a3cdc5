# SPDX-License-Identifier: Apache-2.0
"""mount(2), and unshare(2), which Python has since 3.12 only. Numbers: include/uapi/linux/mount.h."""

from __future__ import annotations

import ctypes
import os

from gpuiso.kernel.libc import libc

__all__ = ["MS_BIND", "MS_MOVE", "MS_NOEXEC", "MS_NOSUID", "MS_REC", "MS_SLAVE", "mount", "unshare"]

MS_NOSUID = 1 << 1
MS_NOEXEC = 1 << 3
MS_BIND = 1 << 12
MS_MOVE = 1 << 13
MS_REC = 1 << 14
MS_SLAVE = 1 << 19


def mount(source: str, target: str, fstype: str | None = None, flags: int = 0, data: str | None = None) -> None:
    """:raises OSError: EPERM without CAP_SYS_ADMIN; EINVAL, ENOENT, ... of the file system."""
    words = [None if text is None else os.fsencode(text) for text in (source, target, fstype, data)]
    if libc.mount(words[0], words[1], words[2], ctypes.c_ulong(flags), words[3]) < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"mount: {os.strerror(code)}", target)


def unshare(flags: int) -> None:
    """Gives the caller namespaces of its own; CLONE_NEW* are in gpuiso.kernel.ns.

    :raises OSError: EPERM without CAP_SYS_ADMIN.
    """
    if libc.unshare(flags) < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"unshare: {os.strerror(code)}")
