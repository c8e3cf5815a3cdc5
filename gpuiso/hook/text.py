# SPDX-License-Identifier: Apache-2.0
"""JSON in and out, bounded.

The json package costs as much as all else the hook does, for the regular expressions of its pure Python half; the
half in C that it stands on is imported by itself. Where a Python lacks that, the package does.
"""

from __future__ import annotations

import os
import stat

from gpuiso.hook.errors import HookError

try:
    from _json import encode_basestring_ascii, make_scanner
except ImportError:  # another implementation than CPython
    from json import JSONDecoder
    from json.encoder import encode_basestring_ascii

    _scan = JSONDecoder().raw_decode
else:

    class _Context:
        """What the scanner takes from a decoder."""

        strict = True
        object_hook = None
        object_pairs_hook = None
        parse_float = float
        parse_int = int
        parse_constant = float
        memo: dict[str, str] = {}  # noqa: RUF012 (the scanner wants one, and clears it)

    _scan = make_scanner(_Context())  # type: ignore[arg-type, assignment] # it takes the attributes, whatever has them

__all__ = ["decode_object", "quote", "read_bounded", "read_file"]

_BLANK = " \t\r\n"


def decode_object(data: bytes, what: str) -> dict[str, object]:
    """The JSON object in ``data``. :raises HookError: it is none; ``what`` names it."""
    try:
        text = data.decode("utf-8")
        start = len(text) - len(text.lstrip(_BLANK))
        value, end = _scan(text, start)
    except UnicodeDecodeError:
        raise HookError(f"{what} is no UTF-8") from None
    except RecursionError:
        raise HookError(f"{what} is nested too deep") from None
    except (StopIteration, SystemError, ValueError) as error:
        raise HookError(f"{what} is {_fault(data, error)}") from None
    if text[end:].strip(_BLANK):
        raise HookError(f"{what} goes on after its end")
    if not isinstance(value, dict):
        raise HookError(f"{what} is no JSON object")
    return value


def _fault(data: bytes, error: Exception) -> str:
    """What is wrong. The scanner itself fails without a reason (SystemError) while json.decoder is not imported."""
    if not data.strip():
        return "empty"
    from json import loads

    try:
        loads(data)
    except ValueError as said:
        return f"no JSON: {said}"
    return f"no JSON: {error}"


def quote(text: str) -> str:
    """``text`` as a JSON string."""
    return str(encode_basestring_ascii(text))


def read_bounded(fd: int, limit: int, what: str) -> bytes:
    """All of a descriptor. :raises HookError: it holds more than ``limit`` bytes."""
    parts = []
    size = 0
    while part := os.read(fd, min(1 << 16, limit + 1 - size)):
        parts.append(part)
        size += len(part)
        if size > limit:
            raise HookError(f"{what} is longer than {limit} bytes")
    return b"".join(parts)


def read_file(path: str, limit: int, *, follow: bool = True) -> bytes:
    """A regular file. :raises HookError: it is something else or too long. :raises OSError: it cannot be read."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    fd = os.open(path, flags)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise HookError(f"{path} is no regular file")
        return read_bounded(fd, limit, path)
    finally:
        os.close(fd)
