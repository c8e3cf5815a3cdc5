# SPDX-License-Identifier: Apache-2.0
"""Whether a file system was mounted from within a user namespace: on such a one no device can be opened.

The kernel marks it SB_I_NODEV (fs/super.c, alloc_super()), which no table shows; devpts alone takes the mark off.
"""

from __future__ import annotations

import os

from gpuiso.errors import NotFound, Unknown
from gpuiso.host.mounts import Mount, mounts
from gpuiso.host.protocol import Host
from gpuiso.kernel.ns import ns_get_userns

__all__ = ["of_user_namespace"]

_INITIAL_USER = 0xEFFFFFFD  # include/linux/proc_ns.h, PROC_USER_INIT_INO


def of_user_namespace(host: Host, pid: int, mount: Mount) -> bool | None:
    """Whether ``mount``, one of the process's, is of a file system of another user namespace than the initial one.

    None: it cannot be told. A file system that process 1 has mounted as well is the machine's.
    """
    namespace, first = _link(host, f"/proc/{pid}/ns/mnt"), _link(host, "/proc/1/ns/mnt")
    if mount.fstype == "devpts" or namespace is None or namespace == first:
        return False
    initial = f"user:[{_INITIAL_USER}]"
    try:
        if _link(host, "/proc/1/ns/user") in (initial, None):
            if any(other.device == mount.device for other in mounts(host, 1)):
                return False
        elif host.live:
            return None  # process 1 is a container's
    except (NotFound, Unknown):
        pass  # no table of process 1: the namespaces decide
    if host.live:
        return _owned(pid)
    user = _link(host, f"/proc/{pid}/ns/user")
    return False if user is None or user in (initial, _link(host, "/proc/1/ns/user")) else None


def _owned(pid: int) -> bool | None:
    try:
        fd = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        try:
            owner = ns_get_userns(fd)
        finally:
            os.close(fd)
        try:
            return os.fstat(owner).st_ino != _INITIAL_USER
        finally:
            os.close(owner)
    except OSError:
        return None


def _link(host: Host, path: str) -> str | None:
    try:
        return host.readlink(path)
    except Unknown:
        return None
