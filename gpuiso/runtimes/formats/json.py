# SPDX-License-Identifier: Apache-2.0
"""A JSON file under edit: indentation, order and spacing of what is not changed stay.

Docker reads daemon.json with Go's encoding/json; a byte order mark is allowed, an empty file is an empty object
(moby, daemon/config/config.go).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, NoReturn

from gpuiso.errors import BadInput
from gpuiso.runtimes.formats import Path, Value, deep_set, dotted, lookup

__all__ = ["JsonDocument"]

_SPACE = re.compile(r"[ \t\r\n]*")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_SCALAR = re.compile(r"[^,\]}\s]+")
_INDENT = "    "
_BOM = "\ufeff"


@dataclass(slots=True)
class _Place:
    """Where a value is; ``members`` where those of an object are, by name."""

    start: int
    end: int = 0
    members: dict[str, _Place] | None = None
    keys: dict[str, int] = field(default_factory=dict)


class JsonDocument:
    """The text of ``file``. :raises BadInput: it is no JSON object, or names a member twice."""

    def __init__(self, text: str, file: str) -> None:
        self.file = file
        self._bom = _BOM if text.startswith(_BOM) else ""
        body = text.removeprefix(_BOM)
        self._load(body if body.strip() else "{}\n")

    @property
    def text(self) -> str:
        return self._bom + self._body

    @property
    def data(self) -> dict[str, Any]:
        return self._data

    def _load(self, body: str) -> None:
        self._data = self._parse(body)
        self._body = body
        self._root = _scan(body, _end(_SPACE, body, 0))

    def _parse(self, body: str) -> dict[str, Any]:
        try:
            data = json.loads(body, object_pairs_hook=self._object, parse_constant=self._constant)
        except json.JSONDecodeError as error:
            raise BadInput(f"not JSON: {error.msg}", file=self.file, line=error.lineno, column=error.colno) from None
        except RecursionError:
            raise BadInput("not JSON that can be read: nested too deep", file=self.file) from None
        except ValueError:  # what Python's own int() refuses
            raise BadInput("not JSON that can be read: a number has thousands of digits", file=self.file) from None
        if not isinstance(data, dict):
            raise BadInput("the top of the document must be an object", file=self.file, line=1)
        return data

    def _constant(self, word: str) -> NoReturn:
        """Python reads NaN and Infinity; neither RFC 8259 nor Go, in which the engines are written, does."""
        raise BadInput(f"not JSON: {word} is no value of JSON", file=self.file)

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise BadInput(f"{twice} is given twice in one object", file=self.file)
        return members

    def line(self, path: Path) -> int | None:
        place: _Place | None = self._root
        at = 0
        for name in path:
            if place is None or place.members is None or name not in place.members:
                return None
            at, place = place.keys[name], place.members[name]
        return self._body.count("\n", 0, at) + 1

    def set(self, path: Path, value: Value) -> None:
        old = lookup(self._data, path)
        if old == value and type(old) is type(value):
            return
        if isinstance(old, dict):
            raise BadInput(f"{dotted(path)} is an object, no value", file=self.file, line=self.line(path))
        place, known = self._root, 0
        while known < len(path) and place.members is not None and path[known] in place.members:
            place, known = place.members[path[known]], known + 1
        rest: Any = value
        for name in reversed(path[known + 1 :]):
            rest = {name: rest}
        if known == len(path):
            new = self._rendered(value, self._indent_at(place.start))
            body = self._body[: place.start] + new + self._body[place.end :]
        elif place.members is None:
            raise BadInput(f"{dotted(path[:known])} is no object", file=self.file, line=self.line(path[:known]))
        else:
            body = self._with_member(place, place.members, path[known], rest)
        if self._parse(body) != deep_set(self._data, path, value):
            raise BadInput(f"{dotted(path)} cannot be set without disturbing the rest of the file", file=self.file)
        self._load(body)

    def _with_member(self, place: _Place, members: dict[str, _Place], name: str, value: Any) -> str:
        body, newline = self._body, self._newline
        if not members:
            outer = self._indent_at(place.start)
            inner = outer + self._unit
            member = f"{json.dumps(name, ensure_ascii=False)}: {self._rendered(value, inner)}"
            return f"{body[: place.start]}{{{newline}{inner}{member}{newline}{outer}}}{body[place.end :]}"
        last, key = list(place.keys.items())[-1]
        end = members[last].end
        before = body[body.rfind("\n", 0, key) + 1 : key]
        own_line = not before.strip()
        gap = newline + before if own_line else " "
        member = f"{json.dumps(name, ensure_ascii=False)}: {self._rendered(value, before if own_line else None)}"
        return f"{body[:end]},{gap}{member}{body[end:]}"

    def _rendered(self, value: Any, indent: str | None) -> str:
        """``value`` as text; on one line if ``indent`` (that of the line it begins on) is None."""
        if indent is None or not isinstance(value, dict):
            return json.dumps(value, ensure_ascii=False)
        lines = [
            f"{indent}{self._unit}{json.dumps(name, ensure_ascii=False)}: {self._rendered(one, indent + self._unit)}"
            for name, one in value.items()
        ]
        return "{" + self._newline + f",{self._newline}".join(lines) + self._newline + indent + "}"

    def _indent_at(self, at: int) -> str:
        line = self._body[self._body.rfind("\n", 0, at) + 1 : at]
        return line[: len(line) - len(line.lstrip(" \t"))]

    @property
    def _unit(self) -> str:
        """One level of indentation: that of the first member on a line of its own."""
        for at in sorted(self._root.keys.values()):
            before = self._body[self._body.rfind("\n", 0, at) + 1 : at]
            if before and not before.strip():
                return before.removeprefix(self._indent_at(self._root.start)) or before
        return _INDENT

    @property
    def _newline(self) -> str:
        return "\r\n" if "\r\n" in self._body else "\n"


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return at if match is None else match.end()


def _scan(text: str, at: int) -> _Place:
    """The places in a text that is known to be JSON."""
    place = _Place(at)
    if text[at] == '"':
        place.end = _end(_STRING, text, at)
    elif text[at] not in "{[":
        place.end = _end(_SCALAR, text, at)
    else:
        place.end = _scan_members(text, place)
    return place


def _scan_members(text: str, place: _Place) -> int:
    is_object = text[place.start] == "{"
    place.members = {} if is_object else None
    at = _end(_SPACE, text, place.start + 1)
    while text[at] not in "}]":
        if text[at] == ",":
            at = _end(_SPACE, text, at + 1)
            continue
        key = at
        if is_object:
            at = _end(_SPACE, text, _end(_SPACE, text, _end(_STRING, text, at)) + 1)
        member = _scan(text, at)
        if place.members is not None:
            name = json.loads(text[key : _end(_STRING, text, key)])
            place.members[name], place.keys[name] = member, key
        at = _end(_SPACE, text, member.end)
    return at + 1
