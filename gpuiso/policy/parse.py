# SPDX-License-Identifier: Apache-2.0
"""Device rules as people write them: ``allow`` or ``deny``, then what devices.allow takes.

::

    deny a                   # everything
    allow c 195:* rw         # TYPE MAJOR:MINOR ACCESS, * for every number
    allow b 8:0 r

The syntax of the part behind the first word is that of
Documentation/admin-guide/cgroup-v1/devices.rst.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, NoReturn, cast

from gpuiso.errors import BadInput
from gpuiso.policy.rule import ALL_ACCESS, MAX_MAJOR, MAX_MINOR, DeviceType, Rule, letters, mask

__all__ = ["parse_device", "parse_rule", "parse_rules"]

_WORD = re.compile(r"[^\s#]+")
_Words = list[tuple[str, int]]
"""Words with the column (from 1) each starts at."""


class _Where:
    """A place in the input, for errors."""

    def __init__(self, file: str | None, line: int | None, end: int) -> None:
        self.file, self.line, self.end = file, line, end

    def fail(self, column: int, message: str, hint: str | None = None) -> NoReturn:
        raise BadInput(message, file=self.file, line=self.line, column=column, hint=hint)


def parse_rules(text: str, *, file: str | None = None, first_line: int = 1) -> list[Rule]:
    """The rules of a text, one a line; ``#`` starts a comment, blank lines do not count.

    :raises BadInput: naming file, line and column.
    """
    return [
        parse_rule(line, file=file, line=number)
        for number, line in enumerate(text.split("\n"), first_line)
        if _WORD.match(line.strip())
    ]


def parse_rule(text: str, *, file: str | None = None, line: int | None = None) -> Rule:
    """One rule: ``allow c 195:* rw``. :raises BadInput: naming the column."""
    words, where = _split(text, file, line)
    if not words:
        where.fail(1, "a rule is missing")
    action, column = words[0]
    if action not in ("allow", "deny"):
        hint = "a rule starts with allow or deny: " + f"allow {text.strip()}" if action in ("a", "b", "c") else None
        where.fail(column, f"expected allow or deny, not {action!r}", hint)
    return _device(words[1:], where, allow=action == "allow")


def parse_device(text: str, *, allow: bool, file: str | None = None, line: int | None = None) -> Rule:
    """What one would write to devices.allow or devices.deny: ``c 195:* rw``. :raises BadInput: see above."""
    words, where = _split(text, file, line)
    return _device(words, where, allow=allow)


def _split(text: str, file: str | None, line: int | None) -> tuple[_Words, _Where]:
    text = text.rstrip("\r\n")
    code = text.split("#", 1)[0]
    words = [(match.group(), match.start() + 1) for match in _WORD.finditer(code)]
    return words, _Where(file, line, len(code.rstrip()) + 1)


def _device(words: _Words, where: _Where, *, allow: bool) -> Rule:
    fields = iter(words)
    kind, column = _next(fields, where, "a device type: a, b or c")
    if kind not in ("a", "b", "c"):
        where.fail(column, f"expected a device type (a, b or c), not {kind!r}")
    if kind == "a":
        return _everything(words, where, allow)
    numbers, column = _next(fields, where, "device numbers, such as 195:0 or 195:*")
    major, minor = _numbers(numbers, column, where)
    access = _access(*_next(fields, where, "an access of r, w and m"), where)
    _end(fields, where)
    return Rule(allow, cast(DeviceType, kind), major, minor, access)


def _everything(words: _Words, where: _Where, allow: bool) -> Rule:
    """``a`` alone, or as devices.list prints it. The kernel ignores what else follows an ``a``: a trap."""
    rest = [word for word, _ in words[1:]]
    if rest and (rest[0] != "*:*" or len(rest) != 2 or _access(*words[2], where) != letters(ALL_ACCESS)):
        where.fail(
            words[1][1],
            f"a stands for every device and every access; {' '.join(rest)!r} cannot narrow it",
            "write one rule for c and one for b instead",
        )
    return Rule(allow, "a", None, None, letters(ALL_ACCESS))


def _numbers(text: str, column: int, where: _Where) -> tuple[int | None, int | None]:
    major, colon, minor = text.partition(":")
    if not colon:
        where.fail(column, f"expected MAJOR:MINOR, not {text!r}")
    return (
        _number(major, column, "major", MAX_MAJOR, where),
        _number(minor, column + len(major) + 1, "minor", MAX_MINOR, where),
    )


def _number(text: str, column: int, what: Literal["major", "minor"], top: int, where: _Where) -> int | None:
    if text == "*":
        return None
    if not (text.isascii() and text.isdigit()):
        where.fail(column, f"expected a {what} number or *, not {text!r}")
    # Compared by length first: Python refuses to convert thousands of digits.
    digits = text.lstrip("0") or "0"
    if len(digits) > len(str(top)) or int(digits) > top:
        where.fail(column, f"{what} {text} is out of range: 0 to {top}")
    return int(digits)


def _access(text: str, column: int, where: _Where) -> str:
    for index, letter in enumerate(text):
        if letter not in "rwm":
            where.fail(column + index, f"unknown access {letter!r}: r, w and m are known")
        if letter in text[:index]:
            where.fail(column + index, f"access {letter!r} is given twice")
    return letters(mask(text))


def _next(fields: Iterator[tuple[str, int]], where: _Where, expected: str) -> tuple[str, int]:
    found = next(fields, None)
    if found is None:
        where.fail(where.end, f"expected {expected}, found the end of the rule")
    return found


def _end(fields: Iterator[tuple[str, int]], where: _Where) -> None:
    found = next(fields, None)
    if found is not None:
        where.fail(found[1], f"{found[0]!r} is more than a rule holds")
