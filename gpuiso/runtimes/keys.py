# SPDX-License-Identifier: Apache-2.0
"""What is known of the keys of a configuration: type, allowed values, default, meaning."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gpuiso.errors import UsageError
from gpuiso.runtimes.formats import Path, Value, dotted

__all__ = ["Key", "KeyTable", "absolute", "each", "leaves", "matching", "one_of", "parse_key"]

Kind = Literal["boolean", "integer", "list", "text"]
Check = Callable[[Any], str | None]

_PART = re.compile(r'"((?:[^"\\]|\\.)*)"|\'([^\']*)\'|([^."\'=]+)')
_TYPES: dict[Kind, type] = {"boolean": bool, "integer": int, "list": list, "text": str}
_WORDS = {"boolean": "true or false", "integer": "a whole number", "list": "a list of texts", "text": "a text"}


def _anything(_: Any) -> str | None:
    return None


@dataclass(frozen=True, slots=True)
class Key:
    """``path`` may hold ``*`` for any one name. ``check`` says what is wrong with a value of the right type."""

    path: Path
    kind: Kind
    says: str
    default: Value | None = None
    check: Check = _anything

    def wrong(self, value: Any) -> str | None:
        """What is wrong with a value, None if it may stand."""
        fits = type(value) is _TYPES[self.kind]
        if self.kind == "list":
            fits = fits and all(isinstance(one, str) for one in value)
        if not fits:
            return f"must be {_WORDS[self.kind]}, not {_shown(value)}"
        return self.check(value)

    def parse(self, name: str, text: str | None) -> Value:
        """The value of ``--set NAME=TEXT``. Lists are split at commas, or JSON.

        :raises UsageError: there is none (``text`` is None), it is not of the key's type, or not allowed.
        """
        value: Value
        if text is None:
            raise UsageError(f"--set {name}: give a value, as {name}={'true' if self.kind == 'boolean' else 'VALUE'}")
        if self.kind == "boolean" and text in ("true", "false"):
            value = text == "true"
        elif self.kind == "integer" and re.fullmatch(r"-?\d{1,18}", text):
            value = int(text)
        elif self.kind == "list":
            value = _list(name, text)
        else:
            value = text
        wrong = self.wrong(value)
        if wrong is not None:
            raise UsageError(f"--set {name}={text}: {wrong}")
        return value


def _list(name: str, text: str) -> list[str]:
    if not text.startswith("["):
        return text.split(",") if text else []
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise UsageError(f"--set {name}={text}: not a JSON list of texts")
    return value


def _shown(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except TypeError:
        return str(value)


class KeyTable:
    """The keys of one configuration."""

    def __init__(self, keys: Iterable[Key]) -> None:
        self.keys = tuple(keys)

    def find(self, path: Path) -> Key | None:
        return next((key for key in self.keys if _matches(key.path, path)), None)

    def named(self, path: Path, name: str, title: str) -> Key:
        """The key that ``--set`` names. :raises UsageError: there is none."""
        key = self.find(path)
        if key is None:
            known = [dotted(key.path) for key in self.keys]
            close = difflib.get_close_matches(dotted(path), known, 1, 0.6)
            raise UsageError(
                f"--set {name}: {title} has no such key that gpuiso knows",
                hint=f"did you mean {close[0]}?" if close else "--keys lists what there is",
            )
        return key


def _matches(pattern: Path, path: Path) -> bool:
    return len(pattern) == len(path) and all(want in ("*", part) for want, part in zip(pattern, path, strict=True))


def leaves(data: Mapping[str, Any], above: Path = ()) -> Iterator[tuple[Path, Any]]:
    """The values of a document that are no tables, with their paths, in order."""
    for name, value in data.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, (*above, name))
        else:
            yield (*above, name), value


def parse_key(setting: str) -> tuple[Path, str, str | None]:
    """``a."b.c".d=VALUE`` as the path, the key as it was written, and the value (None without ``=``).

    :raises UsageError: not a dotted key.
    """
    parts: list[str] = []
    at = 0
    while match := _PART.match(setting, at):
        parts.append(next(group for group in match.groups() if group is not None))
        at = match.end()
        if not setting.startswith(".", at):
            break
        at += 1
    if not parts or setting[at - 1] == "." or (at < len(setting) and setting[at] != "="):
        raise UsageError(f"--set {setting!r}: give KEY=VALUE, with dots in KEY as in nvidia-container-cli.no-cgroups")
    return tuple(parts), setting[:at], setting[at + 1 :] if at < len(setting) else None


def one_of(*allowed: str) -> Check:
    def check(value: Any) -> str | None:
        return None if value in allowed else f"must be one of {', '.join(map(repr, allowed))}, not {value!r}"

    return check


def matching(pattern: str, words: str) -> Check:
    def check(value: Any) -> str | None:
        return None if re.fullmatch(pattern, value) else f"must be {words}, not {value!r}"

    return check


absolute = matching(r"(?s)/.*", "an absolute path")


def each(check: Check) -> Check:
    """A check of every member of a list."""

    def check_all(value: Any) -> str | None:
        return next((wrong for one in value if (wrong := check(one)) is not None), None)

    return check_all
