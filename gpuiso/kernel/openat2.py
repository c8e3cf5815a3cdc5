# SPDX-License-Identifier: Apache-2.0
"""openat2(2): open a path that somebody else controls without being led out of a directory.

Since Linux kernel commit fddb5d430ad9 ("open: introduce openat2(2) syscall") (in v5.6).
"""

from __future__ import annotations

import ctypes

from gpuiso.kernel.libc import syscall

__all__ = [
    "RESOLVE_BENEATH",
    "RESOLVE_IN_ROOT",
    "RESOLVE_NO_MAGICLINKS",
    "RESOLVE_NO_SYMLINKS",
    "RESOLVE_NO_XDEV",
    "openat2",
]

RESOLVE_NO_XDEV = 0x01
RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_BENEATH = 0x08
RESOLVE_IN_ROOT = 0x10

_NR_OPENAT2 = 437


class open_how(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


def openat2(dirfd: int, path: str, flags: int, mode: int = 0, resolve: int = 0) -> int:
    """Opens ``path`` relative to ``dirfd``; returns a file descriptor.

    :raises OSError: EXDEV or ELOOP where ``resolve`` forbids the way; EAGAIN where the tree was renamed during
        a ``..`` step under RESOLVE_IN_ROOT or RESOLVE_BENEATH (retry); ENOSYS before Linux 5.6.
    """
    how = open_how(flags, mode, resolve)
    return syscall(
        "openat2",
        _NR_OPENAT2,
        dirfd,
        path.encode("utf-8", "surrogateescape"),
        ctypes.byref(how),
        ctypes.sizeof(how),
        path=path,
    )
