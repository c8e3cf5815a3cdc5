# SPDX-License-Identifier: Apache-2.0
"""bpf(2): load a cgroup device program, attach it, detach it, ask what is attached.

The part of :mod:`gpuiso.kernel.bpf` that a container's start waits for: it imports nothing that is slow to import.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

from gpuiso.kernel.libc import number, syscall

__all__ = [
    "BPF_CGROUP_DEVICE",
    "BPF_F_ALLOW_MULTI",
    "BPF_F_ALLOW_OVERRIDE",
    "BPF_F_QUERY_EFFECTIVE",
    "BPF_F_REPLACE",
    "BPF_PROG_TYPE_CGROUP_DEVICE",
    "Query",
    "VerifierError",
    "bpf",
    "bpf_attr",
    "prog_attach",
    "prog_detach",
    "prog_get_fd_by_id",
    "prog_load",
    "prog_query",
    "text",
]

BPF_PROG_TYPE_CGROUP_DEVICE = 15
BPF_CGROUP_DEVICE = 6
BPF_F_ALLOW_OVERRIDE = 1
BPF_F_ALLOW_MULTI = 2
BPF_F_REPLACE = 4
BPF_F_QUERY_EFFECTIVE = 1

_NR_BPF = number(321, 280)
_PROG_LOAD, _PROG_ATTACH, _PROG_DETACH, _PROG_GET_FD_BY_ID, _PROG_QUERY = 5, 8, 9, 13, 16

_QUERY = struct.Struct("=IIIIQIIQQQQ")
_INSN_BYTES = 8
_MAX_LOG = 16 << 20


class VerifierError(OSError):
    """The verifier refused a program; ``log`` is all it said (empty if it would not say)."""

    def __init__(self, code: int, message: str, log: str) -> None:
        said = [line for line in log.splitlines() if not line.startswith("processed ")]
        super().__init__(code, f"{message}: {said[-1]}" if said else message)
        self.log = log


class Query:
    """What BPF_PROG_QUERY answers: the ids in the order they run, and the cgroup's attach flags."""

    __slots__ = ("attach_flags", "ids")

    def __init__(self, ids: tuple[int, ...], attach_flags: int) -> None:
        self.ids = ids
        self.attach_flags = attach_flags

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Query) and (self.ids, self.attach_flags) == (other.ids, other.attach_flags)

    def __hash__(self) -> int:
        return hash((self.ids, self.attach_flags))

    def __repr__(self) -> str:
        return f"Query(ids={self.ids!r}, attach_flags={self.attach_flags!r})"


def bpf(name: str, command: int, attr: ctypes.Array[ctypes.c_char], path: str | None = None) -> int:
    """One command of bpf(2); ``name`` is the command's, for the error."""
    return syscall(f"bpf({name})", _NR_BPF, command, ctypes.byref(attr), len(attr), path=path)


def bpf_attr(data: bytes) -> ctypes.Array[ctypes.c_char]:
    """A union bpf_attr of these bytes, which the kernel may write to."""
    return ctypes.create_string_buffer(data, len(data))


def text(field: bytes) -> str:
    """A field of characters, up to its first NUL."""
    return field.split(b"\0", 1)[0].decode("ascii", "replace")


def prog_load(insns: bytes, *, name: str = "", licence: str = "Apache-2.0") -> int:
    """Load a cgroup device program; returns its descriptor (close-on-exec).

    ``name`` holds at most 15 of ``[A-Za-z0-9_.]``. The verifier writes a log only when it
    refused once: asking for one on every load makes good programs slow and can fail on its own.

    :raises VerifierError: the verifier refused (EACCES, EINVAL, E2BIG); OSError otherwise.
    """
    # EAGAIN: the verifier was interrupted by a signal (kernel/bpf/verifier.c, bpf_check).
    for tries_left in reversed(range(30)):
        try:
            return _load(insns, name, licence, None)
        except OSError as error:
            if error.errno == errno.EAGAIN and tries_left:
                continue
            if error.errno not in (errno.EACCES, errno.EINVAL, errno.E2BIG):
                raise
            raise VerifierError(error.errno, error.strerror or "", _verifier_log(insns, name, licence)) from None
    raise AssertionError("unreachable: the last try returns or raises")


def _load(insns: bytes, name: str, licence: str, log: ctypes.Array[ctypes.c_char] | None) -> int:
    code = ctypes.create_string_buffer(insns, len(insns))
    words = ctypes.create_string_buffer(licence.encode())
    attr = struct.pack(
        "=IIQQIIQII16sII",
        BPF_PROG_TYPE_CGROUP_DEVICE,
        len(insns) // _INSN_BYTES,
        ctypes.addressof(code),
        ctypes.addressof(words),
        0 if log is None else 1,
        0 if log is None else len(log),
        0 if log is None else ctypes.addressof(log),
        0,
        0,
        name.encode("ascii"),
        0,
        BPF_CGROUP_DEVICE,
    )
    return bpf("PROG_LOAD", _PROG_LOAD, bpf_attr(attr))


def _verifier_log(insns: bytes, name: str, licence: str) -> str:
    """Load a refused program once more for the reason; ENOSPC means the log needs more room."""
    size = 64 << 10
    while size <= _MAX_LOG:
        log = ctypes.create_string_buffer(size)
        try:
            os.close(_load(insns, name, licence, log))
        except OSError as error:
            if error.errno == errno.ENOSPC:
                size *= 8
                continue
        return text(log.raw).strip()
    return ""


def prog_attach(cgroup_fd: int, prog_fd: int, *, flags: int = BPF_F_ALLOW_MULTI, replace_fd: int = 0) -> None:
    """Attach to a cgroup. With BPF_F_REPLACE ``replace_fd`` is the program that goes, in one step.

    :raises OSError: ENOENT the program to replace is not attached; EINVAL already attached or
        no BPF_F_REPLACE (before commit 7dd68b3279f1, in v5.6); EPERM attached with other flags
        here or above; E2BIG 64 programs are attached.
    """
    attr = struct.pack("=IIIII", cgroup_fd, prog_fd, BPF_CGROUP_DEVICE, flags, replace_fd)
    bpf("PROG_ATTACH", _PROG_ATTACH, bpf_attr(attr))


def prog_detach(cgroup_fd: int, prog_fd: int) -> None:
    """Detach a program from a cgroup. :raises OSError: ENOENT it is not attached there."""
    bpf("PROG_DETACH", _PROG_DETACH, bpf_attr(struct.pack("=IIIII", cgroup_fd, prog_fd, BPF_CGROUP_DEVICE, 0, 0)))


def prog_query(cgroup_fd: int, *, effective: bool = False) -> Query:
    """The device programs of a cgroup; ``effective`` adds those of its ancestors.

    The attribute is passed in its full 64 bytes: kernels from v6.17 write ``revision`` at its
    end whatever length they were given.

    :raises OSError: EPERM without CAP_NET_ADMIN; EBADF not a cgroup2 directory;
        ENOSPC the set kept growing while it was read.
    """
    room = 64
    for _ in range(10):
        ids = (ctypes.c_uint32 * room)()
        flags = BPF_F_QUERY_EFFECTIVE if effective else 0
        attr = bpf_attr(_QUERY.pack(cgroup_fd, BPF_CGROUP_DEVICE, flags, 0, ctypes.addressof(ids), room, 0, 0, 0, 0, 0))
        try:
            bpf("PROG_QUERY", _PROG_QUERY, attr)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            room = max(room * 2, _QUERY.unpack(attr.raw)[5])
            continue
        answer = _QUERY.unpack(attr.raw)
        return Query(tuple(ids[: answer[5]]), answer[3])
    raise OSError(errno.ENOSPC, f"bpf(PROG_QUERY): {os.strerror(errno.ENOSPC)}")


def prog_get_fd_by_id(prog_id: int) -> int:
    """A descriptor of a loaded program. :raises OSError: ENOENT it was unloaded since."""
    return bpf("PROG_GET_FD_BY_ID", _PROG_GET_FD_BY_ID, bpf_attr(struct.pack("=III", prog_id, 0, 0)))
