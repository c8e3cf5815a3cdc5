# SPDX-License-Identifier: Apache-2.0
"""Where the statements of a TOML text are (https://toml.io/en/v1.0.0).

The text is known to be TOML: :mod:`tomllib` has read it. So the scan only has to find where things begin and end.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass

from gpuiso.runtimes.formats import Path

__all__ = ["Comment", "Header", "Pair", "Statement", "key_text", "scan", "value_text"]

_SPACE = re.compile(r"[ \t]*")
_BLANK = re.compile(r"[ \t\r\n]*")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_COMMENT = re.compile(r"#[^\n]*")
_BARE_VALUE = re.compile(r"[^,\]}#\r\n]+")
# A setting that is commented out, as the files of packages have them: "#name = ...".
_DISABLED = re.compile(r"#[ \t]*([A-Za-z0-9_-]+)[ \t]*=")
_STRINGS = {
    '"""': re.compile(r'"""(?:[^\\]|\\.)*?"{3,5}', re.DOTALL),
    "'''": re.compile(r"'''.*?'{3,5}", re.DOTALL),
    '"': re.compile(r'"(?:[^"\\]|\\.)*"'),
    "'": re.compile(r"'[^']*'"),
}


@dataclass(frozen=True, slots=True)
class Header:
    """``[path]``, or ``[[path]]`` where ``array``. ``start`` and ``end`` bound its line, the newline included."""

    path: Path
    array: bool
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Pair:
    """``key = value`` below the header ``table``; ``value`` holds where the value begins and ends."""

    table: Path
    key: Path
    start: int
    value: tuple[int, int]
    end: int


@dataclass(frozen=True, slots=True)
class Comment:
    """A line that is a comment alone; ``disabled`` is the key of a setting that is commented out."""

    disabled: str | None
    start: int
    end: int


Statement = Header | Pair | Comment


def scan(text: str) -> list[Statement]:
    """The statements of ``text``, in order; blank lines are none."""
    found: list[Statement] = []
    table: Path = ()
    at = 0
    while at < len(text):
        start = at
        at = _match_end(_SPACE, text, at)
        if at >= len(text):
            break
        if text[at] in "\r\n":
            at = _line_end(text, at)
        elif text[at] == "#":
            disabled = _DISABLED.match(text, at)
            at = _line_end(text, at)
            found.append(Comment(disabled[1] if disabled else None, start, at))
        elif text[at] == "[":
            array = text.startswith("[[", at)
            table, at = _key(text, at + 1 + array)
            at = _line_end(text, at)
            found.append(Header(table, array, start, at))
        else:
            key, at = _key(text, at)
            at = _match_end(_SPACE, text, text.index("=", at) + 1)
            end = _value_end(text, at)
            line_end = _line_end(text, end)
            found.append(Pair(table, key, start, (at, end), line_end))
            at = line_end
    return found


def _match_end(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return match.end() if match else at


def _line_end(text: str, at: int) -> int:
    newline = text.find("\n", at)
    return len(text) if newline < 0 else newline + 1


def _key(text: str, at: int) -> tuple[Path, int]:
    parts: list[str] = []
    while True:
        at = _match_end(_SPACE, text, at)
        if text[at] in "\"'":
            end = _match_end(_STRINGS[text[at]], text, at)
            parts.append(tomllib.loads(f"key = {text[at:end]}")["key"])
        else:
            end = _match_end(_BARE, text, at)
            parts.append(text[at:end])
        at = _match_end(_SPACE, text, end)
        if not text.startswith(".", at):
            return tuple(parts), at
        at += 1


def _value_end(text: str, at: int) -> int:
    if text[at] in "[{":
        return _bracket_end(text, at)
    for quote, pattern in _STRINGS.items():
        if text.startswith(quote, at):
            return _match_end(pattern, text, at)
    end = _match_end(_BARE_VALUE, text, at)
    return at + len(text[at:end].rstrip())


def _bracket_end(text: str, at: int) -> int:
    """The end of an array or inline table that begins at ``at``."""
    depth = 0
    while True:
        at = _match_end(_BLANK, text, at)
        mark = text[at]
        if mark in "[{":
            depth, at = depth + 1, at + 1
        elif mark in "]}":
            depth, at = depth - 1, at + 1
            if depth == 0:
                return at
        elif mark == "#":
            at = _match_end(_COMMENT, text, at)
        elif mark in "\"'":
            at = _value_end(text, at)
        else:
            at += 1


def key_text(path: Path) -> str:
    """A dotted key, quoted where it has to be."""
    return ".".join(part if _BARE.fullmatch(part) else _quoted(part) for part in path)


def value_text(value: object) -> str:
    """A value on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, list):
        return "[" + ", ".join(value_text(one) for one in value) + "]"
    if isinstance(value, dict):
        members = ", ".join(f"{key_text((name,))} = {value_text(one)}" for name, one in value.items())
        return "{ " + members + " }" if members else "{}"
    return str(value)  # an integer, or what tomllib reads of floats and times


def _quoted(text: str) -> str:
    escapes = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}
    out = [escapes.get(c) or (c if c.isprintable() else f"\\U{ord(c):08x}") for c in text]
    return '"' + "".join(out) + '"'
