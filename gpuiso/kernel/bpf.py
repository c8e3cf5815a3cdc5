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
import struct
from dataclasses import dataclass

from gpuiso.kernel.bpf_attach import (
    BPF_CGROUP_DEVICE,
    BPF_F_ALLOW_MULTI,
    BPF_F_ALLOW_OVERRIDE,
    BPF_F_QUERY_EFFECTIVE,
    BPF_F_REPLACE,
    BPF_PROG_TYPE_CGROUP_DEVICE,
    Query,
    VerifierError,
    bpf,
    bpf_attr,
    prog_attach,
    prog_detach,
    prog_get_fd_by_id,
    prog_load,
    prog_query,
    text,
)

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
    "enable_stats",
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

_MAP_LOOKUP_ELEM, _MAP_GET_NEXT_KEY, _MAP_GET_FD_BY_ID, _OBJ_GET_INFO_BY_FD = 1, 4, 14, 15
_ENABLE_STATS, _BPF_STATS_RUN_TIME = 32, 0

_PROG_INFO = struct.Struct("=II8sIIQQQIIQ16sII8x8x")
_MAP_INFO = struct.Struct("=IIIIII16s")
_INFO_ROOM = 256
_RUN_STATS_AT = 192  # run_time_ns and run_cnt in struct bpf_prog_info
_PERCPU_MAP_TYPES = frozenset({5, 6, 10, 21})


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


def map_get_fd_by_id(map_id: int) -> int:
    """A descriptor of a map. :raises OSError: ENOENT it is gone."""
    return bpf("MAP_GET_FD_BY_ID", _MAP_GET_FD_BY_ID, bpf_attr(struct.pack("=III", map_id, 0, 0)))


def _info(fd: int, head: bytes) -> bytes:
    info = ctypes.create_string_buffer(head, _INFO_ROOM)
    attr = bpf_attr(struct.pack("=IIQ", fd, _INFO_ROOM, ctypes.addressof(info)))
    bpf("OBJ_GET_INFO_BY_FD", _OBJ_GET_INFO_BY_FD, attr)
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
        name=text(name),
        uid=uid,
        load_time=load_time,
        gpl_compatible=bool(bits & 1),
        map_ids=tuple(maps[:nr_maps]),
        insns=shown,
        run_time_ns=run_time_ns,
        run_cnt=run_cnt,
    )


def enable_stats() -> int:
    """Count run_time_ns and run_cnt of all programs for as long as the descriptor returned is open.

    :raises OSError: EPERM without CAP_SYS_ADMIN; EINVAL before commit d46edd671a14, in v5.8.
    """
    return bpf("ENABLE_STATS", _ENABLE_STATS, bpf_attr(struct.pack("=I", _BPF_STATS_RUN_TIME)))


def map_info(fd: int) -> MapInfo:
    """Describe a map."""
    kind, map_id, key_size, value_size, max_entries, flags, name = _MAP_INFO.unpack_from(_info(fd, b""))
    return MapInfo(map_id, kind, key_size, value_size, max_entries, flags, text(name))


def map_lookup_elem(fd: int, key: bytes, info: MapInfo) -> bytes | None:
    """The value of ``key`` in the map that ``info`` describes, or None if it holds none.

    :raises OSError: EPERM not permitted; EOPNOTSUPP the kind of map has no lookup from outside;
        EINVAL for per-CPU maps, whose value depends on the CPU that asks.
    """
    if info.type in _PERCPU_MAP_TYPES:
        raise OSError(errno.EINVAL, "bpf(MAP_LOOKUP_ELEM): a per-CPU map has no one value")
    if len(key) != info.key_size:
        raise OSError(errno.EINVAL, f"bpf(MAP_LOOKUP_ELEM): the key needs {info.key_size} bytes")
    key_buffer = bpf_attr(key)
    value = ctypes.create_string_buffer(max(info.value_size, 8))
    attr = struct.pack("=IIQQQ", fd, 0, ctypes.addressof(key_buffer), ctypes.addressof(value), 0)
    try:
        bpf("MAP_LOOKUP_ELEM", _MAP_LOOKUP_ELEM, bpf_attr(attr))
    except FileNotFoundError:
        return None
    return value.raw[: info.value_size]


def map_get_next_key(fd: int, key: bytes | None, info: MapInfo) -> bytes | None:
    """The key after ``key`` (None: the first), or None after the last."""
    before = None if key is None else bpf_attr(key)
    after = ctypes.create_string_buffer(max(info.key_size, 1))
    at = 0 if before is None else ctypes.addressof(before)
    try:
        bpf(
            "MAP_GET_NEXT_KEY",
            _MAP_GET_NEXT_KEY,
            bpf_attr(struct.pack("=IIQQ", fd, 0, at, ctypes.addressof(after))),
        )
    except FileNotFoundError:
        return None
    return after.raw[: info.key_size]
