# SPDX-License-Identifier: Apache-2.0
"""JSON from a record: parsed within bounds and checked by hand, so that a wrong shape is one clear error.

The JSON Schemas beside this module say the same for other programs; checking with them would cost more time than
reading the record.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NoReturn

from gpuiso.errors import BadInput

__all__ = ["MAX_JSON", "Place", "parse"]

_MOST_DIGITS = 100  # no number of a host has more
MAX_JSON = 16 << 20  # bytes of one JSON file; parsed it takes some twenty times that


def parse(data: bytes, file: str, line: int | None = None) -> Any:
    """The JSON value in ``data``. ``line`` is where it stands, for files of one value a line.

    :raises BadInput: not JSON, nested too deeply, a name twice in an object, a number out of range.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        at = line if line is not None else data.count(b"\n", 0, error.start) + 1
        raise BadInput("not UTF-8", file=file, line=at) from error
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_constant, parse_int=_integer)
    except json.JSONDecodeError as error:
        raise BadInput(f"not JSON: {error.msg}", file=file, line=line or error.lineno, column=error.colno) from error
    except RecursionError as error:
        raise BadInput("not usable: nested too deeply", file=file, line=line) from error
    except ValueError as error:
        raise BadInput(f"not usable: {error}", file=file, line=line) from error


def _integer(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"a number has {len(digits)} digits")
    return int(digits)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice[:100]!r} stands twice in one object")
    return found


def _constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON number")


class Place:
    """Where a value stands, to check it and to say so: ``Place("tools/docker.json").key("info")``."""

    def __init__(self, file: str, line: int | None = None, where: str = "") -> None:
        self.file = file
        self.line = line
        self.where = where

    def key(self, name: str | int) -> Place:
        """The place of a member or an item."""
        step = f"[{name}]" if isinstance(name, int) else f".{name[:100]}" if self.where else name[:100]
        return Place(self.file, self.line, self.where + step)

    def fail(self, problem: str) -> NoReturn:
        """:raises BadInput: always, with the place before ``problem``."""
        raise BadInput(f"{self.where}: {problem}" if self.where else problem, file=self.file, line=self.line)

    def mapping(self, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            self.fail(f"must be an object, not {_named(value)}")
        return value

    def sequence(self, value: Any) -> list[Any]:
        if not isinstance(value, list):
            self.fail(f"must be a list, not {_named(value)}")
        return value

    def string(self, value: Any) -> str:
        if not isinstance(value, str):
            self.fail(f"must be a string, not {_named(value)}")
        return value

    def boolean(self, value: Any) -> bool:
        if not isinstance(value, bool):
            self.fail(f"must be true or false, not {_named(value)}")
        return value

    def integer(self, value: Any, low: int = 0, high: int = 2**63 - 1) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            self.fail(f"must be an integer, not {_named(value)}")
        if not low <= value <= high:
            self.fail(f"must be from {low} to {high}")
        return value

    def number(self, value: Any) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= 1e18:
            self.fail(f"must be a number up to 1e18, not {_named(value)}")
        return float(value)

    def optional_strings(self, value: Mapping[str, Any], *names: str) -> None:
        """Checks that each of ``names`` is a string or null, or missing."""
        for name in names:
            if value.get(name) is not None:
                self.key(name).string(value[name])

    def optional_integers(self, value: Mapping[str, Any], *names: str) -> None:
        """Checks that each of ``names`` is an integer or null, or missing."""
        for name in names:
            if value.get(name) is not None:
                self.key(name).integer(value[name])


def _named(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, float) and not math.isfinite(value):
        return "a number out of range"
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", int: "an integer"}
    return names.get(type(value), "a number")
