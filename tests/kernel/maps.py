# SPDX-License-Identifier: Apache-2.0
"""Maps for tests: gpuiso itself only reads those of others."""

from __future__ import annotations

import ctypes
import struct

from gpuiso.kernel.libc import number, syscall

__all__ = ["ARRAY", "HASH", "map_create", "map_update"]

HASH, ARRAY = 1, 2
_NR_BPF = number(321, 280)
_MAP_CREATE, _MAP_UPDATE_ELEM = 0, 2


def _bpf(command: int, attr: bytes) -> int:
    buffer = ctypes.create_string_buffer(attr, len(attr))
    return syscall("bpf", _NR_BPF, command, ctypes.byref(buffer), len(attr))


def map_create(kind: int, *, key_size: int, value_size: int, max_entries: int, name: str = "") -> int:
    return _bpf(
        _MAP_CREATE, struct.pack("=IIIIIII16s", kind, key_size, value_size, max_entries, 0, 0, 0, name.encode())
    )


def map_update(fd: int, key: bytes, value: bytes) -> None:
    key_buffer, value_buffer = ctypes.create_string_buffer(key), ctypes.create_string_buffer(value)
    addresses = ctypes.addressof(key_buffer), ctypes.addressof(value_buffer)
    _bpf(_MAP_UPDATE_ELEM, struct.pack("=IIQQQ", fd, 0, *addresses, 0))
