# SPDX-License-Identifier: Apache-2.0
"""How C libraries read lists, numbers and UUIDs out of an environment variable."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable

from gpuiso.gpu.visibility.model import Reason, Token

__all__ = ["c_long", "c_ulong", "hex_run", "int32", "items", "quoted", "refused", "unread_warnings", "walk"]

_MOST_ITEMS = 4096

_LONG_MAX = 2**63 - 1
_LONG_MIN = -(2**63)
_ULONG_MAX = 2**64 - 1

# isspace(3) in the C locale, and ASCII digits alone: Python's own int() accepts more of both.
_DECIMAL = re.compile(r"[ \t\n\v\f\r]*([+-]?)([0-9]+)")
_BASE_0 = re.compile(r"[ \t\n\v\f\r]*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)")
_HEX_RUN = re.compile(r"[0-9a-fA-F][0-9a-fA-F-]*")


def c_long(text: str, base: int = 10) -> tuple[int, str] | None:
    """Read ``text`` as strtol(3) with base 10 or 0 does: the value and what is left behind it.

    None if there is no number to read. A value that does not fit a 64-bit long becomes the nearest that does.
    """
    match = (_DECIMAL if base == 10 else _BASE_0).match(text)
    if match is None:
        return None
    digits = match[2]
    if base == 10 or not digits.startswith("0"):
        value = _magnitude(digits, 10)
    elif digits[:2] in ("0x", "0X"):
        value = _magnitude(digits[2:], 16)
    else:
        value = _magnitude(digits, 8)
    if match[1] == "-":
        value = -value
    return max(_LONG_MIN, min(_LONG_MAX, value)), text[match.end() :]


def c_ulong(text: str) -> tuple[int, str] | None:
    """Read ``text`` as strtoul(3) with base 10 does: a value of 64 bits, and what is left behind it.

    None if there is no number to read. A sign negates within 64 bits; what does not fit becomes 2**64 - 1.
    """
    match = _DECIMAL.match(text)
    if match is None:
        return None
    value = _magnitude(match[2], 10)
    if value > _ULONG_MAX:
        value = _ULONG_MAX
    elif match[1] == "-":
        value = -value % 2**64
    return value, text[match.end() :]


def _magnitude(digits: str, base: int) -> int:
    significant = digits.lstrip("0") or "0"
    # 2**64 has 22 octal digits; int() refuses strings of thousands of digits.
    return int(significant, base) if len(significant) <= 22 else 2**64


def int32(value: int) -> int:
    """The low 32 bits of a 64-bit number, as C assigns it to an int."""
    return (value + 2**31) % 2**32 - 2**31


def hex_run(text: str) -> str:
    """The hex digits and dashes ``text`` starts with; empty unless it starts with a hex digit."""
    match = _HEX_RUN.match(text)
    return match[0] if match else ""


def quoted(text: str) -> str:
    """A token as a sentence shows it: quoted, on one line, not too long."""
    shown = repr(text[:80])
    return shown if len(shown) <= 60 else f"{shown[:56]}...'"


def items(value: str) -> list[str]:
    """The comma-separated items of a value, at most 4096: the last one of more is all the rest.

    A list that selects something has no more items than a machine has devices; what is longer is no list, and reading
    all of it would take its writer's time of us.
    """
    return value.split(",", _MOST_ITEMS - 1)


def walk(texts: Iterable[str], lex: Callable[[int, str], Token], resolve: Callable[[Token], Token]) -> list[Token]:
    """The tokens of a list that ends where ``resolve`` says so; what comes after that is only looked at."""
    tokens: list[Token] = []
    end: Token | None = None
    for position, text in enumerate(texts):
        token = lex(position, text)
        if end is None:
            token = resolve(token)
            end = token if token.ends else None
        else:
            why = f"it comes after {quoted(end.text)}, which ends the list"
            token = dataclasses.replace(token, reason=Reason.AFTER_END, why=why)
        tokens.append(token)
    return tokens


def refused(tokens: Iterable[Token], why: str) -> list[Token]:
    """The same tokens, none of which has an effect because of something else in the list."""
    return [
        token if token.reason is not None else dataclasses.replace(token, reason=Reason.REFUSED, why=why)
        for token in tokens
    ]


def unread_warnings(tokens: Iterable[Token]) -> list[str]:
    """One sentence for each effective token of which only the beginning counts."""
    return [
        f"{token.variable}: {quoted(token.text)} is read as {quoted(token.text[: -len(token.rest)].strip())},"
        f" the rest is not read"
        for token in tokens
        if token.rest.strip() and token.reason is None
    ]
