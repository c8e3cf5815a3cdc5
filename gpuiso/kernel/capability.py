# SPDX-License-Identifier: Apache-2.0
"""capset(2) and the numbers of capabilities that gpuiso speaks of (include/uapi/linux/capability.h)."""

from __future__ import annotations

import ctypes
import os
import struct

from gpuiso.kernel.libc import libc

__all__ = [
    "CAP_DAC_OVERRIDE",
    "CAP_DAC_READ_SEARCH",
    "CAP_MKNOD",
    "CAP_SYS_ADMIN",
    "capset",
    "prctl_set_keepcaps",
]

CAP_DAC_OVERRIDE = 1
CAP_DAC_READ_SEARCH = 2
CAP_SYS_ADMIN = 21
CAP_MKNOD = 27

_LINUX_CAPABILITY_VERSION_3 = 0x20080522
_PR_SET_KEEPCAPS = 8
_MASK = (1 << 32) - 1


def capset(effective: int, permitted: int, inheritable: int = 0) -> None:
    """Sets the caller's own capability sets, bits by capability number.

    :raises OSError: EPERM for a capability that is not permitted to the caller.
    """
    header = struct.pack("=Ii", _LINUX_CAPABILITY_VERSION_3, 0)
    sets = (effective, permitted, inheritable)
    data = struct.pack("=6I", *(s & _MASK for s in sets), *(s >> 32 & _MASK for s in sets))
    if libc.capset(header, data) < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"capset: {os.strerror(code)}")


def prctl_set_keepcaps(*, keep: bool) -> None:
    """Whether permitted capabilities outlive a change of all user ids away from 0."""
    if libc.prctl(_PR_SET_KEEPCAPS, ctypes.c_ulong(keep), 0, 0, 0) < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl(PR_SET_KEEPCAPS): {os.strerror(code)}")
