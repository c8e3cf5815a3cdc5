# SPDX-License-Identifier: Apache-2.0
"""faccessat2(2): may the effective user access a path? Nothing is opened.

Since Linux kernel commit c8ffd8bcdd28 ("vfs: add faccessat2 syscall") (in v5.8).
"""

from __future__ import annotations

import os

from gpuiso.kernel.libc import syscall

__all__ = ["AT_EACCESS", "AT_FDCWD", "faccessat2"]

AT_FDCWD = -100
AT_EACCESS = 0x200

_NR_FACCESSAT2 = 439


def faccessat2(dirfd: int, path: str, mode: int, flags: int = 0) -> None:
    """Returns if the access is granted. ``mode`` is a sum of os.R_OK, os.W_OK, os.X_OK.

    :raises OSError: why it is not: EACCES, EPERM (a device cgroup), ENOENT, EROFS, ...
    """
    syscall("faccessat2", _NR_FACCESSAT2, dirfd, os.fsencode(path), mode, flags, path=path)
