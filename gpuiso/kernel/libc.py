# SPDX-License-Identifier: Apache-2.0
"""libc's syscall(2), with failures as OSError that names the call and what it was about.

Every module of this package calls the kernel through here. Call numbers above 402 are the
same on all architectures; older ones are given for x86-64 and for the generic table
(include/uapi/asm-generic/unistd.h: aarch64, riscv64, loongarch64).
"""

from __future__ import annotations

import ctypes
import errno
import os

__all__ = ["libc", "number", "syscall"]

libc = ctypes.CDLL(None, use_errno=True)
_syscall = libc.syscall
_syscall.restype = ctypes.c_long

_GENERIC_TABLE = frozenset({"aarch64", "riscv64", "loongarch64"})


def number(x86_64: int, generic: int) -> int | None:
    """The number of a call on this machine, or None where neither table applies."""
    machine = os.uname().machine
    if machine == "x86_64":
        return x86_64
    return generic if machine in _GENERIC_TABLE else None


def syscall(name: str, nr: int | None, *args: object, path: str | None = None) -> int:
    """Call ``nr`` with ``args`` (integers, bytes, None or ctypes objects); returns its result.

    ``name`` is the call's own name and ``path`` what it works on; both end up in the error.

    :raises OSError: the call failed (errno set); ENOSYS where ``nr`` is None.
    """
    if nr is None:
        raise OSError(errno.ENOSYS, f"{name}: {os.strerror(errno.ENOSYS)}", path)
    # Plain integers must be widened here: ctypes passes an int as a 32-bit value otherwise.
    wide = [ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in args]
    result: int = _syscall(ctypes.c_long(nr), *wide)
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}", path)
    return result
