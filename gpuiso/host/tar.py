# SPDX-License-Identifier: Apache-2.0
"""A strict reader of tar headers, for archives that a stranger made.

It knows what records are made of: regular files and directories in the formats of POSIX.1-2001 (pax), ustar and GNU
tar. Links, devices, FIFOs and sparse files are refused. The standard library's tarfile is not used to read: it
follows headers that say more (sparse maps, negative sizes, hard links), and some releases of it can be kept busy for
ever by a crafted header (CVE-2024-6232, CVE-2025-8194).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

__all__ = ["BLOCK", "Member", "TarError", "members"]

BLOCK = 512
_MAX_EXTENDED = 1 << 16  # bytes of a pax header or a GNU long name; a path has at most 4096
_REFUSED = {
    b"1": "a hard link",
    b"2": "a symbolic link",
    b"3": "a character device",
    b"4": "a block device",
    b"6": "a FIFO",
    b"K": "a link",
    b"S": "a sparse file",
}


class TarError(ValueError):
    """Not an archive that a record may be."""


@dataclass(frozen=True, slots=True)
class Member:
    """``offset`` and ``size`` are bytes in the unpacked archive; ``directory`` members have no content."""

    name: str
    directory: bool
    offset: int
    size: int


def members(pread: Callable[[int, int], bytes], length: int) -> Iterator[Member]:
    """The members of the archive whose ``length`` bytes ``pread(offset, size)`` gives.

    :raises TarError: truncated, damaged, or holding something else than files and directories.
    """
    offset = 0
    long_name: str | None = None
    pax: dict[str, str] = {}
    while True:
        header = pread(offset, BLOCK)
        if len(header) < BLOCK:
            raise TarError("truncated: the end-of-archive mark is missing")
        if not any(header):
            return
        _verify(header, offset)
        kind = header[156:157]
        size = int(pax["size"]) if pax.get("size", "").isdecimal() else _number(header[124:136])
        offset += BLOCK
        if size > length - offset:
            raise TarError(f"truncated: a member of {size} bytes at offset {offset}")
        if kind in (b"x", b"L", b"g"):
            if size > _MAX_EXTENDED:
                raise TarError(f"a header of {size} bytes at offset {offset}")
            content = pread(offset, size)
            if kind == b"x":
                pax = _pax(content)
            elif kind == b"L":
                long_name = _text(content)
            elif _pax(content).keys() & {"path", "size"}:
                raise TarError("a global header that names a file")
        else:
            name = pax.get("path") or long_name or _name(header)
            long_name, pax = None, {}
            if kind in _REFUSED:
                raise TarError(f"member {name!r} is {_REFUSED[kind]}: a record holds files and directories only")
            if kind not in (b"0", b"\0", b"7", b"5"):
                raise TarError(f"member {name!r} is of the unknown type {kind!r}")
            directory = kind == b"5" or name.endswith("/")
            yield Member(name, directory, offset, 0 if directory else size)
        offset += -(-size // BLOCK) * BLOCK


def _verify(header: bytes, offset: int) -> None:
    # The sum is taken with its own field counted as blanks (POSIX.1-2001, pax, ustar interchange format).
    total = sum(header) - sum(header[148:156]) + 8 * 0x20
    if _number(header[148:156]) != total:
        raise TarError(f"damaged: wrong checksum of the header at offset {offset}")


def _number(field: bytes) -> int:
    if field[0] & 0x80:  # GNU's base-256, for sizes of 8 GiB and more: none of a record
        raise TarError("a number that no record needs")
    text = field.strip(b" \0")
    if not text:
        return 0
    try:
        value = int(text, 8)
    except ValueError:
        raise TarError(f"damaged: {text!r} is no octal number") from None
    if value < 0:
        raise TarError(f"damaged: {text!r} is no octal number")
    return value


def _name(header: bytes) -> str:
    name = _text(header[:100])
    # GNU's old format keeps times where POSIX has the prefix.
    prefix = _text(header[345:500]) if header[257:263] == b"ustar\0" else ""
    return f"{prefix}/{name}" if prefix else name


def _text(field: bytes) -> str:
    return field.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")


def _pax(content: bytes) -> dict[str, str]:
    """The records ``LENGTH KEY=VALUE\\n`` of an extended header; the length counts the whole record."""
    found: dict[str, str] = {}
    at = 0
    while at < len(content):
        digits, blank, _ = content[at : at + 8].partition(b" ")
        length = int(digits) if blank and digits.isdigit() else 0
        record = content[at : at + length]
        if length <= len(digits) + 2 or len(record) != length or record[-1:] != b"\n":
            raise TarError("damaged: a pax header that is not in records")
        key, equals, value = record[len(digits) + 1 : -1].partition(b"=")
        if not equals:
            raise TarError("damaged: a pax header that is not in records")
        if key.startswith(b"GNU.sparse."):
            raise TarError("a sparse file: a record holds plain files and directories only")
        if b"\0" in value and key == b"path":
            raise TarError("a name with a null byte")
        found[key.decode("utf-8", "replace")] = value.decode("utf-8", "surrogateescape")
        at += length
    if "size" in found and not (found["size"].isascii() and found["size"].isdecimal() and len(found["size"]) < 20):
        raise TarError("damaged: a pax header with a size that is no number")
    return found
