# SPDX-License-Identifier: Apache-2.0
"""The libraries in /etc/ld.so.cache (glibc, sysdeps/generic/dl-cache.h).

A file is a table of entries and then their strings. The new format (``glibc-ld.so.cache1.1``) may stand alone
or behind an old one (``ld.so-1.7.0``), whose entries are skipped. The file is the host's, but in a record it
is a stranger's: every offset is checked.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from gpuiso.errors import BadInput

__all__ = ["CachedLibrary", "parse_ldcache"]

_OLD_MAGIC = b"ld.so-1.7.0\0"
_NEW_MAGIC = b"glibc-ld.so.cache"
_NEW_VERSION = b"1.1"
_OLD_ENTRY = 12  # flags, key, value
_NEW_HEADER = 48  # magic and version (20), nlibs, len_strings, flags and padding (4), extension_offset, unused (12)
_NEW_ENTRY = struct.Struct("=iIIIQ")  # flags, key, value, osversion, hwcap

_ELF = 0x0003  # FLAG_ELF_LIBC6 in the low byte; FLAG_ELF_LIBC5 is 2, FLAG_ELF 1
_TYPE_MASK = 0x00FF
_ARCHITECTURE_MASK = 0xFF00
# FLAG_*_LIB64 and the 64-bit architectures without a suffix: SPARC, IA64, X8664, S390, POWERPC, AARCH64,
# RISCV, LARCH; the letters are those of dl-cache.h.
_ARCHITECTURES_64 = frozenset({0x0100, 0x0200, 0x0300, 0x0400, 0x0500, 0x0A00, 0x1000, 0x1200})


@dataclass(frozen=True, slots=True)
class CachedLibrary:
    """``name`` is the SONAME or file name that is looked up, ``path`` where the library lies."""

    name: str
    path: str
    is_64_bit: bool


def parse_ldcache(data: bytes, file: str = "/etc/ld.so.cache") -> tuple[CachedLibrary, ...]:
    """The libraries of a cache, in the order of the table. Raises BadInput if it is none."""
    start = _new_format_at(data, file)
    if len(data) < start + _NEW_HEADER:
        raise BadInput("cut off inside its header", file=file)
    (count,) = struct.unpack_from("=I", data, start + len(_NEW_MAGIC) + len(_NEW_VERSION))
    table_end = start + _NEW_HEADER + count * _NEW_ENTRY.size
    if table_end > len(data):
        raise BadInput(f"its {count} entries do not fit into its {len(data)} bytes", file=file)
    found = []
    for flags, key, value, _osversion, _hwcap in _NEW_ENTRY.iter_unpack(data[start + _NEW_HEADER : table_end]):
        if flags & _TYPE_MASK == _ELF:
            found.append(
                CachedLibrary(
                    _string(data, start + key, file),
                    _string(data, start + value, file),
                    flags & _ARCHITECTURE_MASK in _ARCHITECTURES_64,
                )
            )
    return tuple(found)


def _new_format_at(data: bytes, file: str) -> int:
    if data.startswith(_NEW_MAGIC + _NEW_VERSION):
        return 0
    if data.startswith(_OLD_MAGIC) and len(data) >= len(_OLD_MAGIC) + 4:
        count = int(struct.unpack_from("=I", data, len(_OLD_MAGIC))[0])
        end = len(_OLD_MAGIC) + 4 + count * _OLD_ENTRY
        aligned: int = (end + 7) & ~7
        if data[aligned : aligned + 20] == _NEW_MAGIC + _NEW_VERSION:
            return aligned
        raise BadInput("only the cache format of glibc before 2.2, which names no architecture", file=file)
    raise BadInput("no ld.so cache: it starts with neither of the known magic words", file=file)


def _string(data: bytes, offset: int, file: str) -> str:
    end = data.find(b"\0", offset) if offset < len(data) else -1
    if end < 0:
        raise BadInput(f"a string at offset {offset} does not end inside the file", file=file)
    return data[offset:end].decode("utf-8", "replace")
