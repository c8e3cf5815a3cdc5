# SPDX-License-Identifier: Apache-2.0
"""A TOML file under edit.

A file's writer is not used for this: the libraries that keep comments do not say on which line a value is, which
an error message has to.
"""

from __future__ import annotations

import re
import tomllib
from itertools import takewhile
from typing import Any

from gpuiso.errors import BadInput
from gpuiso.runtimes.formats import Path, Value, deep_set, dotted, lookup
from gpuiso.runtimes.formats.toml_text import Comment, Header, Pair, Statement, key_text, scan, value_text

__all__ = ["TomlDocument"]

_WHERE = re.compile(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", re.DOTALL)


class TomlDocument:
    """The text of ``file``. :raises BadInput: it is not TOML."""

    def __init__(self, text: str, file: str) -> None:
        self.file = file
        self._load(text)

    @property
    def text(self) -> str:
        return self._text

    @property
    def data(self) -> dict[str, Any]:
        return self._data

    def _load(self, text: str) -> None:
        self._data = _parse(text, self.file)
        self._text = text
        self._statements = scan(text)
        arrays: set[Path] = set()
        self._pairs: dict[Path, Pair] = {}
        self._headers: dict[Path, Header] = {}
        for statement in self._statements:
            if isinstance(statement, Header):
                if statement.array:
                    arrays.add(statement.path)
                elif not _within(statement.path, arrays):
                    self._headers[statement.path] = statement
            elif isinstance(statement, Pair) and not _within(statement.table, arrays):
                self._pairs[statement.table + statement.key] = statement

    def line(self, path: Path) -> int | None:
        for length in range(len(path), 0, -1):  # a member of an inline table: the table's line
            place = self._pairs.get(path[:length]) or self._headers.get(path[:length])
            if place is not None:
                return self._line_of(place) if lookup(self._data, path) is not None else None
        return None

    def _line_of(self, statement: Statement) -> int:
        return self._text.count("\n", 0, statement.start) + 1

    def set(self, path: Path, value: Value) -> None:
        old = lookup(self._data, path)
        if old == value and type(old) is type(value):
            return
        self._refuse_what_is_in_the_way(path, old)
        expected = deep_set(self._data, path, value)
        pair, inside = self._pair_above(path)
        if pair is not None:
            table = lookup(self._data, path[: len(path) - len(inside)])
            new = value if not inside else deep_set(table, inside, value)
            text = self._spliced(*pair.value, value_text(new))
        else:
            text = self._with_new_pair(path, value)
        if _parse(text, self.file) != expected:
            raise BadInput(
                f"{dotted(path)} cannot be set without disturbing the rest of the file",
                file=self.file,
                line=self.line(path),
            )
        self._load(text)

    def _refuse_what_is_in_the_way(self, path: Path, old: Any) -> None:
        if isinstance(old, dict):
            raise BadInput(f"{dotted(path)} is a table, no value", file=self.file, line=self.line(path))
        for length in range(1, len(path)):
            above = lookup(self._data, path[:length])
            if above is not None and not isinstance(above, dict):
                raise BadInput(f"{dotted(path[:length])} is no table", file=self.file, line=self.line(path[:length]))

    def _pair_above(self, path: Path) -> tuple[Pair | None, Path]:
        """The pair that holds the value, and the path within it if it is an inline table."""
        for length in range(len(path), 0, -1):
            pair = self._pairs.get(path[:length])
            if pair is not None:
                return pair, path[length:]
        return None, ()

    def _spliced(self, start: int, end: int, new: str) -> str:
        return self._text[:start] + new + self._text[end:]

    def _with_new_pair(self, path: Path, value: Value) -> str:
        table = path[:-1]
        dotted_in = self._section_with_dotted(table)
        if dotted_in is not None:
            return self._into_section(dotted_in, path[len(dotted_in) :], value)
        if not table or table in self._headers:
            return self._into_section(table, path[-1:], value)
        return self._new_section(table, path[-1], value)

    def _section_with_dotted(self, table: Path) -> Path | None:
        """The header below which ``table`` is made by dotted keys; such a table has no header of its own."""
        for pair in self._pairs.values():
            whole = pair.table + pair.key
            if len(pair.table) < len(table) < len(whole) and whole[: len(table)] == table:
                return pair.table
        return None

    def _section(self, table: Path) -> tuple[Header | None, list[Statement]]:
        """A header and the statements below it, up to the next header."""
        header = self._headers.get(table) if table else None
        first = 0 if header is None else self._statements.index(header) + 1
        rest = self._statements[first:]
        return header, list(takewhile(lambda one: not isinstance(one, Header), rest))

    def _into_section(self, table: Path, key: Path, value: Value) -> str:
        header, body = self._section(table)
        pairs = [one for one in body if isinstance(one, Pair)]
        disabled = [one for one in body if isinstance(one, Comment) and one.disabled == key[0]]
        siblings = [pair for pair in pairs if len(key) > 1 and pair.key[: len(key) - 1] == key[:-1]]
        model: Statement | None = (disabled or siblings or pairs or [header])[-1]
        if model is None:  # the file has nothing at its top yet
            return self._at_the_top(f"{key_text(key)} = {value_text(value)}")
        indent = self._indent(model) + ("  " if model is header and self._indent(model) else "")
        return self._line_after(model.end, f"{indent}{key_text(key)} = {value_text(value)}")

    def _at_the_top(self, line: str) -> str:
        first = next((one for one in self._statements if isinstance(one, Header)), None)
        if first is None:
            return self._line_after(len(self._text), line)
        at = self._before_its_comments(first)
        return self._text[:at] + line + self._newline * 2 + self._text[at:]

    def _new_section(self, table: Path, key: str, value: Value) -> str:
        relatives = [
            (_common(header.path, table), index)
            for index, header in enumerate(self._statements)
            if isinstance(header, Header) and _common(header.path, table)
        ]
        indent = ""
        at = len(self._text)
        if relatives:
            _, index = max(relatives)
            indent = self._indent(self._statements[index])
            following = next((one for one in self._statements[index + 1 :] if isinstance(one, Header)), None)
            if following is not None:
                at = self._before_its_comments(following)
        lines = [
            f"{indent}[{key_text(table)}]",
            f"{indent}{'  ' if indent else ''}{key_text((key,))} = {value_text(value)}",
        ]
        block = self._newline.join(lines) + self._newline
        before, after = self._text[:at], self._text[at:]
        if before and not before.endswith("\n"):
            before += self._newline
        if before.strip() and not before.endswith(("\n\n", "\n\r\n")):
            before += self._newline
        return before + block + (self._newline if after else "") + after

    def _before_its_comments(self, header: Header) -> int:
        """Where a header begins, with the comment lines that stand directly above it."""
        at = header.start
        for statement in reversed(self._statements[: self._statements.index(header)]):
            if not isinstance(statement, Comment) or statement.disabled or statement.end != at:
                break
            at = statement.start
        return at

    def _indent(self, statement: Statement) -> str:
        line = self._text[statement.start : statement.end]
        return line[: len(line) - len(line.lstrip(" \t"))]

    def _line_after(self, at: int, line: str) -> str:
        before, after = self._text[:at], self._text[at:]
        if before and not before.endswith("\n"):
            return before + self._newline + line + after
        return before + line + self._newline + after

    @property
    def _newline(self) -> str:
        first = self._text.find("\n")
        return "\r\n" if first > 0 and self._text[first - 1] == "\r" else "\n"


def _common(first: Path, second: Path) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


def _within(path: Path, arrays: set[Path]) -> bool:
    return any(path[:length] in arrays for length in range(1, len(path) + 1))


class _Real(str):
    """A float as it is written: no NaN that differs from itself, and nothing lost."""

    __slots__ = ()


def _parse(text: str, file: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text, parse_float=_Real)
    except tomllib.TOMLDecodeError as error:
        match = _WHERE.fullmatch(str(error))
        if match is None:
            raise BadInput(f"not TOML: {error}", file=file) from None
        line, column = (int(match[2]), int(match[3])) if match[2] else (text.count("\n") + 1, None)
        raise BadInput(f"not TOML: {match[1]}", file=file, line=line, column=column) from None
    except RecursionError:
        raise BadInput("not TOML that can be read: nested too deep", file=file) from None
