# SPDX-License-Identifier: Apache-2.0
"""syslog(2): the kernel's ring buffer."""

from __future__ import annotations

import ctypes
import os

from gpuiso.kernel.libc import libc

__all__ = ["klogctl_read_all"]

_SYSLOG_ACTION_READ_ALL = 3
_SYSLOG_ACTION_SIZE_BUFFER = 10

libc.klogctl.restype = ctypes.c_int


def klogctl_read_all() -> bytes:
    """The whole ring buffer as the kernel formats it: ``<PRIORITY>[SECONDS] message`` lines.

    :raises OSError: EPERM without CAP_SYSLOG where kernel.dmesg_restrict is 1.
    """
    size = libc.klogctl(_SYSLOG_ACTION_SIZE_BUFFER, None, 0)
    if size < 0:
        _fail()
    buffer = ctypes.create_string_buffer(size)
    length = libc.klogctl(_SYSLOG_ACTION_READ_ALL, buffer, size)
    if length < 0:
        _fail()
    return buffer.raw[:length]


def _fail() -> None:
    code = ctypes.get_errno()
    raise OSError(code, f"syslog: {os.strerror(code)}")
