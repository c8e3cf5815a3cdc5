# SPDX-License-Identifier: Apache-2.0
"""Configuration files under edit. What is not changed stays as it is, byte for byte.

Each format finds the places of its values in the text, and an edit replaces or adds text there; nothing is
written out anew. After each edit the text is parsed by an independent parser and must give the old values with
that one change, or the edit is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from gpuiso.errors import BadInput

__all__ = ["Document", "Path", "Value", "decode", "deep_set", "dotted", "lookup"]

Path = tuple[str, ...]
Value = bool | int | str | list[str]


class Document(Protocol):
    """A file's text, and its values as dictionaries, lists and scalars."""

    @property
    def text(self) -> str: ...

    @property
    def data(self) -> dict[str, Any]: ...

    def line(self, path: Path) -> int | None:
        """The line where a value is set, None if it is not."""

    def set(self, path: Path, value: Value) -> None:
        """Set a value; tables above it that do not exist are made. The same value again changes nothing.

        :raises BadInput: something that is no table is in the way.
        """


def decode(data: bytes, file: str) -> str:
    """The text of a file. :raises BadInput: it is not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BadInput(f"not UTF-8 text: byte 0x{data[error.start]:02x}", file=file, line=line) from None


def dotted(path: Path) -> str:
    """A path as people write it: ``a.b."c.d"``."""
    return ".".join(f'"{part}"' if "." in part or not part else part for part in path)


def lookup(data: Mapping[str, Any], path: Path) -> Any:
    """The value at ``path``, None if there is none."""
    value: Any = data
    for part in path:
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return value


def deep_set(data: Mapping[str, Any], path: Path, value: Any) -> dict[str, Any]:
    """A copy of ``data`` with one value changed."""
    copy = dict(data)
    rest = path[1:]
    copy[path[0]] = deep_set(copy.get(path[0]) or {}, rest, value) if rest else value
    return copy
