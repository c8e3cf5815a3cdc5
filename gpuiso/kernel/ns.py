# SPDX-License-Identifier: Apache-2.0
"""setns(2), which Python has since 3.12 only."""

from __future__ import annotations

import ctypes
import os

from gpuiso.kernel.libc import libc

__all__ = ["CLONE_NEWCGROUP", "CLONE_NEWNS", "CLONE_NEWPID", "CLONE_NEWUSER", "setns"]

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000


def setns(fd: int, nstype: int) -> None:
    """Moves the caller into a namespace; ``fd`` is a /proc/PID/ns file (or a pidfd, since v5.8).

    :raises OSError: EPERM without CAP_SYS_ADMIN (and CAP_SYS_CHROOT for a mount namespace); EINVAL with threads.
    """
    if libc.setns(fd, nstype) < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"setns: {os.strerror(code)}")
