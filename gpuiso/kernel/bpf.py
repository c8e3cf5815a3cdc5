# SPDX-License-Identifier: Apache-2.0
"""bpf(2), as far as cgroup device programs need it.

Layouts are those of union bpf_attr, struct bpf_prog_info and struct bpf_map_info in
include/uapi/linux/bpf.h. Every function raises OSError naming the command when the kernel
refuses: EPERM without CAP_BPF/CAP_SYS_ADMIN, ENOENT for an id whose object is gone (programs
come and go while one looks at them: ask again), EINVAL where the kernel lacks a feature.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from dataclasses import dataclass

from gpuiso.kernel.libc import number, syscall

__all__ = [
    "BPF_CGROUP_DEVICE",
    "BPF_F_ALLOW_MULTI",
    "BPF_F_ALLOW_OVERRIDE",
    "BPF_F_QUERY_EFFECTIVE",
    "BPF_F_REPLACE",
    "BPF_PROG_TYPE_CGROUP_DEVICE",
    "MapInfo",
    "ProgInfo",
    "Query",
    "VerifierError",
    "map_get_fd_by_id",
    "map_get_next_key",
    "map_info",
    "map_lookup_elem",
    "prog_attach",
    "prog_detach",
    "prog_get_fd_by_id",
    "prog_info",
    "prog_load",
    "prog_query",
]

BPF_PROG_TYPE_CGROUP_DEVICE = 15
BPF_CGROUP_DEVICE = 6
BPF_F_ALLOW_OVERRIDE = 1
BPF_F_ALLOW_MULTI = 2
BPF_F_REPLACE = 4
BPF_F_QUERY_EFFECTIVE = 1

_NR_BPF = number(321, 280)
_MAP_LOOKUP_ELEM, _MAP_GET_NEXT_KEY, _PROG_LOAD, _PROG_ATTACH, _PROG_DETACH = 1, 4, 5, 8, 9
_PROG_GET_FD_BY_ID, _MAP_GET_FD_BY_ID, _OBJ_GET_INFO_BY_FD, _PROG_QUERY = 13, 14, 15, 16

_QUERY = struct.Struct("=IIIIQIIQQQQ")
_PROG_INFO = struct.Struct("=II8sIIQQQIIQ16sII8x8x")
_MAP_INFO = struct.Struct("=IIIIII16s")
_INFO_ROOM = 256
_RUN_STATS_AT = 192  # run_time_ns and run_cnt in struct bpf_prog_info
_INSN_BYTES = 8
_MAX_LOG = 16 << 20
_PERCPU_MAP_TYPES = frozenset({5, 6, 10, 21})


class VerifierError(OSError):
    """The verifier refused a program; ``log`` is all it said (empty if it would not say)."""

    def __init__(self, code: int, message: str, log: str) -> None:
        said = [line for line in log.splitlines() if not line.startswith("processed ")]
        super().__init__(code, f"{message}: {said[-1]}" if said else message)
        self.log = log


@dataclass(frozen=True)
class Query:
    """What BPF_PROG_QUERY answers: the ids in the order they run, and the cgroup's attach flags."""

    ids: tuple[int, ...]
    attach_flags: int


@dataclass(frozen=True)
class ProgInfo:
    """One loaded program. ``load_time`` is nanoseconds since boot; ``tag`` is lower-case hex.

    ``insns`` is the translated program, 8 bytes an instruction, or None where the kernel
    withholds it (it gives zero length to callers it does not trust).
    """

    id: int
    type: int
    tag: str
    name: str
    uid: int
    load_time: int
    gpl_compatible: bool
    map_ids: tuple[int, ...]
    insns: bytes | None
    run_time_ns: int
    run_cnt: int


@dataclass(frozen=True)
class MapInfo:
    """One map: type number of enum bpf_map_type, sizes in bytes."""

    id: int
    type: int
    key_size: int
    value_size: int
    max_entries: int
    flags: int
    name: str


def _bpf(name: str, command: int, attr: ctypes.Array[ctypes.c_char], path: str | None = None) -> int:
    return syscall(f"bpf({name})", _NR_BPF, command, ctypes.byref(attr), len(attr), path=path)


def _attr(data: bytes) -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(data, len(data))


def _text(field: bytes) -> str:
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
    return _bpf("PROG_LOAD", _PROG_LOAD, _attr(attr))


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
        return _text(log.raw).strip()
    return ""


def prog_attach(cgroup_fd: int, prog_fd: int, *, flags: int = BPF_F_ALLOW_MULTI, replace_fd: int = 0) -> None:
    """Attach to a cgroup. With BPF_F_REPLACE ``replace_fd`` is the program that goes, in one step.

    :raises OSError: ENOENT the program to replace is not attached; EINVAL already attached or
        no BPF_F_REPLACE (before commit 7dd68b3279f1, in v5.6); EPERM attached with other flags
        here or above; E2BIG 64 programs are attached.
    """
    attr = struct.pack("=IIIII", cgroup_fd, prog_fd, BPF_CGROUP_DEVICE, flags, replace_fd)
    _bpf("PROG_ATTACH", _PROG_ATTACH, _attr(attr))


def prog_detach(cgroup_fd: int, prog_fd: int) -> None:
    """Detach a program from a cgroup. :raises OSError: ENOENT it is not attached there."""
    _bpf("PROG_DETACH", _PROG_DETACH, _attr(struct.pack("=IIIII", cgroup_fd, prog_fd, BPF_CGROUP_DEVICE, 0, 0)))


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
        attr = _attr(_QUERY.pack(cgroup_fd, BPF_CGROUP_DEVICE, flags, 0, ctypes.addressof(ids), room, 0, 0, 0, 0, 0))
        try:
            _bpf("PROG_QUERY", _PROG_QUERY, attr)
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
    return _bpf("PROG_GET_FD_BY_ID", _PROG_GET_FD_BY_ID, _attr(struct.pack("=III", prog_id, 0, 0)))


def map_get_fd_by_id(map_id: int) -> int:
    """A descriptor of a map. :raises OSError: ENOENT it is gone."""
    return _bpf("MAP_GET_FD_BY_ID", _MAP_GET_FD_BY_ID, _attr(struct.pack("=III", map_id, 0, 0)))


def _info(fd: int, head: bytes) -> bytes:
    info = ctypes.create_string_buffer(head, _INFO_ROOM)
    attr = _attr(struct.pack("=IIQ", fd, _INFO_ROOM, ctypes.addressof(info)))
    _bpf("OBJ_GET_INFO_BY_FD", _OBJ_GET_INFO_BY_FD, attr)
    return info.raw


def prog_info(fd: int, *, insns: bool = True) -> ProgInfo:
    """Describe a program; ``insns`` asks for the translated instructions and the map ids too."""
    head = _PROG_INFO.unpack_from(_info(fd, b""))
    xlated_len, nr_maps = head[4] if insns else 0, head[9] if insns else 0
    code = ctypes.create_string_buffer(max(xlated_len, 1))
    maps = (ctypes.c_uint32 * max(nr_maps, 1))()
    ask = bytearray(_PROG_INFO.size)
    struct.pack_into("=I", ask, 20, xlated_len)
    struct.pack_into("=Q", ask, 32, ctypes.addressof(code) if xlated_len else 0)
    struct.pack_into("=I", ask, 52, nr_maps)
    struct.pack_into("=Q", ask, 56, ctypes.addressof(maps) if nr_maps else 0)
    raw = _info(fd, bytes(ask))
    kind, prog_id, tag, _, length, _, at, load_time, uid, _, _, name, _, bits = _PROG_INFO.unpack_from(raw)
    run_time_ns, run_cnt = struct.unpack_from("=QQ", raw, _RUN_STATS_AT)
    # A caller without the right to see kernel memory gets the pointer back as 0, and no code.
    shown = code.raw[:length] if xlated_len and at and length <= len(code) else None
    return ProgInfo(
        id=prog_id,
        type=kind,
        tag=tag.hex(),
        name=_text(name),
        uid=uid,
        load_time=load_time,
        gpl_compatible=bool(bits & 1),
        map_ids=tuple(maps[:nr_maps]),
        insns=shown,
        run_time_ns=run_time_ns,
        run_cnt=run_cnt,
    )


def map_info(fd: int) -> MapInfo:
    """Describe a map."""
    kind, map_id, key_size, value_size, max_entries, flags, name = _MAP_INFO.unpack_from(_info(fd, b""))
    return MapInfo(map_id, kind, key_size, value_size, max_entries, flags, _text(name))


def map_lookup_elem(fd: int, key: bytes, info: MapInfo) -> bytes | None:
    """The value of ``key`` in the map that ``info`` describes, or None if it holds none.

    :raises OSError: EPERM not permitted; EOPNOTSUPP the kind of map has no lookup from outside;
        EINVAL for per-CPU maps, whose value depends on the CPU that asks.
    """
    if info.type in _PERCPU_MAP_TYPES:
        raise OSError(errno.EINVAL, "bpf(MAP_LOOKUP_ELEM): a per-CPU map has no one value")
    if len(key) != info.key_size:
        raise OSError(errno.EINVAL, f"bpf(MAP_LOOKUP_ELEM): the key needs {info.key_size} bytes")
    key_buffer = _attr(key)
    value = ctypes.create_string_buffer(max(info.value_size, 8))
    attr = struct.pack("=IIQQQ", fd, 0, ctypes.addressof(key_buffer), ctypes.addressof(value), 0)
    try:
        _bpf("MAP_LOOKUP_ELEM", _MAP_LOOKUP_ELEM, _attr(attr))
    except FileNotFoundError:
        return None
    return value.raw[: info.value_size]


def map_get_next_key(fd: int, key: bytes | None, info: MapInfo) -> bytes | None:
    """The key after ``key`` (None: the first), or None after the last."""
    before = None if key is None else _attr(key)
    after = ctypes.create_string_buffer(max(info.key_size, 1))
    at = 0 if before is None else ctypes.addressof(before)
    try:
        _bpf(
            "MAP_GET_NEXT_KEY",
            _MAP_GET_NEXT_KEY,
            _attr(struct.pack("=IIQQ", fd, 0, at, ctypes.addressof(after))),
        )
    except FileNotFoundError:
        return None
    return after.raw[: info.key_size]
