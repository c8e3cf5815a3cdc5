# SPDX-License-Identifier: Apache-2.0
"""setns(2), which Python has since 3.12 only, and the owner of a namespace (ioctl_nsfs(2))."""

from __future__ import annotations

import ctypes
import os

from gpuiso.kernel.libc import libc

__all__ = ["CLONE_NEWCGROUP", "CLONE_NEWNS", "CLONE_NEWPID", "CLONE_NEWUSER", "ns_get_userns", "setns"]

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000

_NS_GET_USERNS = 0xB701


def setns(fd: int, nstype: int) -> None:
    """Moves the caller into a namespace; ``fd`` is a /proc/PID/ns file (or a pidfd, since v5.8).

    :raises OSError: EPERM without CAP_SYS_ADMIN (and CAP_SYS_CHROOT for a mount namespace); EINVAL with threads.
    """
    if libc.setns(fd, nstype) < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"setns: {os.strerror(code)}")


def ns_get_userns(fd: int) -> int:
    """A descriptor of the user namespace that owns the namespace ``fd`` (close-on-exec).

    :raises OSError: EPERM where that one is no descendant of the caller's.
    """
    owner: int = libc.ioctl(fd, ctypes.c_ulong(_NS_GET_USERNS))
    if owner < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"ioctl(NS_GET_USERNS): {os.strerror(code)}")
    return owner
