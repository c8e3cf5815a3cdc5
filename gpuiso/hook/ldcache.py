# SPDX-License-Identifier: Apache-2.0
"""Adds libraries to an ld.so.cache (glibc, sysdeps/generic/dl-cache.h) without running ldconfig.

ldconfig would have to read every library of the container, as root, through links that the container made. The
driver's libraries are known by name, so they are put into the table that is there, in front of others of their name:
ld.so takes the first of equal names. A cache that makes no sense is replaced by one of our libraries alone; what
ld.so does not find there it looks for in the usual directories.
"""

from __future__ import annotations

import struct

from gpuiso.hook.errors import HookError

__all__ = ["add_libraries", "flags_of"]

_MAGIC = b"glibc-ld.so.cache1.1"
_OLD_MAGIC = b"ld.so-1.7.0\0"
_OLD_ENTRY = 12
_HEADER = struct.Struct("=20sIIB3xI12x")  # magic, entries, bytes of strings, endianness, extensions at
_ENTRY = struct.Struct("=iIIIQ")  # flags, name at, path at, OS version, hardware capabilities
_LITTLE_ENDIAN = 2  # cache_file_new_flags_endian_little; gpuiso runs on such machines alone
_EXTENSION_MAGIC = 0xEAA42174
_EXTENSION_HWCAPS = 1
_MOST_ENTRIES = 1 << 17

# FLAG_ELF_LIBC6 and the architecture of 64-bit libraries, by the kernel's name of the machine.
_FLAGS = {"x86_64": 0x0303, "aarch64": 0x0A03, "ppc64le": 0x0503, "riscv64": 0x1003, "loongarch64": 0x1203}

_Row = tuple[int, int, int, int, int]


class _Known:
    """A library that the cache has, as its table describes it."""

    __slots__ = ("_data", "row")

    def __init__(self, data: bytes, row: _Row) -> None:
        self._data = data
        self.row = row

    @property
    def name(self) -> bytes:
        return _string(self._data, self.row[1])

    @property
    def path(self) -> bytes:
        return _string(self._data, self.row[2])

    @property
    def flags(self) -> int:
        return self.row[0]


class _New:
    """A library to add."""

    __slots__ = ("flags", "name", "path")

    def __init__(self, name: bytes, path: bytes, flags: int) -> None:
        self.name = name
        self.path = path
        self.flags = flags


def flags_of(machine: str) -> int:
    """How libraries of this machine are marked. :raises HookError: not known."""
    if machine not in _FLAGS:
        raise HookError(f"ld.so.cache: how libraries of {machine} are marked is not known")
    return _FLAGS[machine]


def add_libraries(cache: bytes | None, libraries: list[tuple[str, str]], flags: int) -> bytes:
    """The cache with (name, path) pairs added, the first of them most wanted; those it has stay where they are."""
    data, entries = _read(cache)
    known = len(entries)
    # The last first: each goes in front of those of its name.
    for name, path in reversed(libraries):
        new = _New(name.encode(), path.encode(), flags)
        at = _position(entries, new.name)
        if not _has(entries, at, new):
            entries.insert(at, new)
    if len(entries) == known and data == cache:
        return data
    return _write(data, known, entries)


def _write(data: bytes, known: int, entries: list[_Known | _New]) -> bytes:
    tail_at = _HEADER.size + known * _ENTRY.size
    tail = data[tail_at:]
    shift = (len(entries) - known) * _ENTRY.size
    end = tail_at + shift + len(tail)
    strings = bytearray()
    rows = []
    for entry in entries:
        if isinstance(entry, _Known):
            flags, name, path, version, capabilities = entry.row
            rows.append(_ENTRY.pack(flags, name + shift, path + shift, version, capabilities))
        else:
            at = end + len(strings)
            strings += entry.name + b"\0" + entry.path + b"\0"
            rows.append(_ENTRY.pack(entry.flags, at, at + len(entry.name) + 1, 0, 0))
    extension_at, tail = _moved_extensions(data, tail, tail_at, shift)
    size = len(tail) + len(strings)
    return b"".join((_HEADER.pack(_MAGIC, len(rows), size, _LITTLE_ENDIAN, extension_at), *rows, tail, strings))


def _read(cache: bytes | None) -> tuple[bytes, list[_Known | _New]]:
    """The new format's part of a cache and its table; of one that makes no sense, nothing."""
    nothing: tuple[bytes, list[_Known | _New]] = (_HEADER.pack(_MAGIC, 0, 0, _LITTLE_ENDIAN, 0), [])
    if cache is None:
        return nothing
    data = cache
    if cache.startswith(_OLD_MAGIC) and len(cache) >= len(_OLD_MAGIC) + 4:
        count = int(struct.unpack_from("=I", cache, len(_OLD_MAGIC))[0])
        data = cache[(len(_OLD_MAGIC) + 4 + count * _OLD_ENTRY + 7) & ~7 :]
    if not data.startswith(_MAGIC) or len(data) < _HEADER.size:
        return nothing
    count = _HEADER.unpack_from(data)[1]
    end = _HEADER.size + count * _ENTRY.size
    if count > _MOST_ENTRIES or end > len(data):
        return nothing
    rows: list[_Known | _New] = []
    for row in _ENTRY.iter_unpack(data[_HEADER.size : end]):
        if not (end <= row[1] < len(data) and end <= row[2] < len(data)):
            return nothing
        rows.append(_Known(data, row))
    return data, rows


def _moved_extensions(data: bytes, tail: bytes, tail_at: int, shift: int) -> tuple[int, bytes]:
    """Where the extensions are now, and the tail with the offsets in them moved; without sense, they go.

    struct cache_extension, its sections of (tag, flags, offset, size); the section of tag 1 holds offsets of strings.
    """
    at = _HEADER.unpack_from(data)[4]
    if at < tail_at or at + 8 > len(data) or at % 4:
        return 0, tail
    magic, count = struct.unpack_from("=II", data, at)
    if magic != _EXTENSION_MAGIC or count > 64 or at + 8 + 16 * count > len(data):
        return 0, tail
    moved = bytearray(tail)
    for index in range(count):
        place = at + 8 + 16 * index
        tag, flags, offset, size = struct.unpack_from("=IIII", data, place)
        if offset < tail_at or offset + size > len(data):
            return 0, tail
        struct.pack_into("=IIII", moved, place - tail_at, tag, flags, offset + shift, size)
        if tag == _EXTENSION_HWCAPS:
            for word in range(offset, offset + size - 3, 4):
                (string,) = struct.unpack_from("=I", data, word)
                struct.pack_into("=I", moved, word - tail_at, (string + shift) & 0xFFFFFFFF)
    return at + shift, bytes(moved)


def _position(entries: list[_Known | _New], name: bytes) -> int:
    """The first place, in a table that descends, of ``name`` or of what is less."""
    low, high = 0, len(entries)
    while low < high:
        middle = (low + high) // 2
        if _compare(entries[middle].name, name) > 0:
            low = middle + 1
        else:
            high = middle
    return low


def _has(entries: list[_Known | _New], at: int, new: _New) -> bool:
    while at < len(entries) and entries[at].name == new.name:
        if entries[at].path == new.path and entries[at].flags == new.flags:
            return True
        at += 1
    return False


def _compare(one: bytes, other: bytes) -> int:
    """_dl_cache_libcmp of dl-cache.c: digits are compared as numbers, and come after everything else."""
    i = j = 0
    if one == other:
        return 0
    while i < len(one):
        a, b = one[i], other[j] if j < len(other) else 0
        if a == b and not 48 <= a <= 57:
            i, j = i + 1, j + 1
            continue
        a_is_digit, b_is_digit = 48 <= a <= 57, 48 <= b <= 57
        if a_is_digit != b_is_digit:
            return 1 if a_is_digit else -1
        if not a_is_digit:
            return _signed(a) - _signed(b)
        first, i = _number(one, i)
        second, j = _number(other, j)
        if first != second:
            return first - second
    return -_signed(other[j]) if j < len(other) else 0


def _number(text: bytes, at: int) -> tuple[int, int]:
    start = at
    while at < len(text) and 48 <= text[at] <= 57:
        at += 1
    return int(text[start : min(at, start + 18)]), at


def _signed(byte: int) -> int:
    return byte - 256 if byte > 127 else byte


def _string(data: bytes, at: int) -> bytes:
    end = data.find(b"\0", at)
    return data[at : end if end >= 0 else len(data)]
