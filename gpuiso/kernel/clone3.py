# SPDX-License-Identifier: Apache-2.0
"""clone3(2): a child that starts inside another cgroup.

The child never runs outside its cgroup, so no move (and no right to move tasks out of the
caller's own cgroup) is needed. Layout: struct clone_args, include/uapi/linux/sched.h.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

__all__ = ["CLONE_INTO_CGROUP", "CLONE_PIDFD", "clone3"]

CLONE_PIDFD = 0x1000
CLONE_INTO_CGROUP = 0x2_0000_0000

_NR_CLONE3 = 435
_SIGCHLD = 17  # on every architecture but alpha, mips, parisc and sparc
_CLONE_ARGS = struct.Struct("=11Q")


def clone3(*, cgroup_fd: int | None = None, flags: int = 0) -> tuple[int, int]:
    """Fork with clone3; returns ``(pid, pidfd)`` in the parent and ``(0, -1)`` in the child.

    ``cgroup_fd`` is a descriptor of a cgroup2 directory (O_PATH will do). ``flags`` are further
    CLONE_* flags that keep fork's meaning (new namespaces). The interpreter's own fork hooks are
    run; those of the C library are not, so call it from a process with one thread. The child must
    end with ``os._exit``.

    :raises OSError: ENOSYS before v5.3; EINVAL no CLONE_INTO_CGROUP (before commit ef2c41cf38a7,
        in v5.7); EACCES no write access to the cgroup; EBUSY it has controllers enabled;
        EOPNOTSUPP it is in threaded mode of an invalid kind; ENODEV it was removed.
    """
    pidfd = ctypes.c_int(-1)
    wanted = flags | CLONE_PIDFD | (0 if cgroup_fd is None else CLONE_INTO_CGROUP)
    args = ctypes.create_string_buffer(
        _CLONE_ARGS.pack(wanted, ctypes.addressof(pidfd), 0, 0, _SIGCHLD, 0, 0, 0, 0, 0, cgroup_fd or 0),
        _CLONE_ARGS.size,
    )
    # PyDLL keeps the interpreter's lock over the call: the child must own it, and must find the
    # interpreter's state whole.
    python = ctypes.PyDLL(None, use_errno=True)
    call = python.syscall
    call.restype = ctypes.c_long
    python.PyOS_BeforeFork()
    pid: int = call(ctypes.c_long(_NR_CLONE3), ctypes.byref(args), ctypes.c_size_t(_CLONE_ARGS.size))
    code = ctypes.get_errno()
    if pid == 0:
        python.PyOS_AfterFork_Child()
        return 0, -1
    python.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(code or errno.EINVAL, f"clone3: {os.strerror(code)}")
    os.set_inheritable(pidfd.value, False)
    return pid, pidfd.value
