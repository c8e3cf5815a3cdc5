# SPDX-License-Identifier: Apache-2.0
"""Lines of a policy: text to :class:`gpuiso.policy.statement.Statement`. No host is asked.

::

    deny a                       # everything
    allow c 195:* rw             # TYPE MAJOR:MINOR ACCESS, as devices.allow takes them
    allow /dev/nvidia0 rw        # a node; /dev/nvidia* those that there are
    allow char-nvidia-uvm        # a driver, by its name in /proc/devices
    allow gpu 0                  # a GPU: its node, its capability nodes and the control nodes it needs
    allow mig MIG-98b0           # a MIG device
    allow default-nodes          # null, zero, full, random, urandom, tty, console, ptmx, pts
    allow -/dev/infiniband/* rw  # a dash: there may be none

The numeric form is that of Documentation/admin-guide/cgroup-v1/devices.rst, the names of drivers are those of
DeviceAllow= in systemd.resource-control(5). Where no access is given it is rwm, as in both systemd and CDI.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Literal, NoReturn, cast

from gpuiso.errors import BadInput
from gpuiso.policy.nodes import NODE_SETS
from gpuiso.policy.place import Place, raise_errors
from gpuiso.policy.rule import ALL_ACCESS, MAX_MAJOR, MAX_MINOR, DeviceType, Rule, letters, mask
from gpuiso.policy.statement import DeviceClass, Glob, GpuName, MigName, NodeSet, Numbers, Path, Statement, Subject

__all__ = [
    "Line",
    "parse_access",
    "parse_device",
    "parse_line",
    "parse_rule",
    "parse_rules",
    "parse_statements",
    "parse_subject",
    "read_statements",
]

_WORD = re.compile(r"[^\s#]+")
_GPU = re.compile(
    r"all|[0-9]{1,4}|(?:nvidia|amd|intel):[0-9]{1,4}|GPU-[0-9A-Fa-f][0-9A-Fa-f-]*"
    r"|[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]"
)
_MIG = re.compile(r"MIG-[0-9A-Fa-f][0-9A-Fa-f-]*|MIG-GPU-[0-9A-Fa-f][0-9A-Fa-f-]*/[0-9]{1,4}/[0-9]{1,4}")
_EXPECTED = "a device: a, b or c with numbers, a path, char-NAME, block-NAME, gpu, mig or default-nodes"
_CLASSES: dict[str, DeviceType] = {"char-": "c", "block-": "b"}

_Word = tuple[str, int]
"""A word and the column (from 1) it starts at."""


class Line:
    """The words of a line, to be taken one by one, and its place in the input for errors.

    ``place`` is where ``text`` starts; ``exact`` is False where columns in the text are none of the file's.
    """

    def __init__(self, text: str, place: Place, *, exact: bool = True) -> None:
        code = text.rstrip("\r\n").split("#", 1)[0]
        self.text = code.strip()
        self._words = [(match.group(), match.start() + 1) for match in _WORD.finditer(code)]
        self._next = 0
        self._end = len(code.rstrip()) + 1
        self._place = place
        self._exact = exact

    @property
    def empty(self) -> bool:
        return not self._words

    def place(self, column: int) -> Place:
        first = self._place.column or 1
        return replace(self._place, column=first + column - 1 if self._exact else first, text=self.text)

    def fail(self, column: int, message: str, hint: str | None = None) -> NoReturn:
        raise self.place(column).error(message, hint)

    def peek(self) -> _Word | None:
        return self._words[self._next] if self._next < len(self._words) else None

    def take(self, expected: str) -> _Word:
        word = self.peek()
        if word is None:
            self.fail(self._end, f"expected {expected}, found the end of the rule")
        if not word[0].isprintable():
            self.fail(word[1], f"{word[0]!a} holds a character that cannot stand in a rule")
        self._next += 1
        return word

    def rest(self) -> list[_Word]:
        rest, self._next = self._words[self._next :], len(self._words)
        return rest

    def finish(self) -> None:
        if (word := self.peek()) is not None:
            self.fail(word[1], f"{word[0]!r} is more than a rule holds")


def parse_statements(text: str, *, file: str | None = None) -> list[Statement]:
    """The statements of a text, one a line; ``#`` starts a comment, blank lines do not count.

    :raises BadPolicy: with all errors, each naming file, line and column.
    """
    statements, errors = read_statements(text, file=file)
    raise_errors(errors)
    return statements


def read_statements(text: str, *, file: str | None = None) -> tuple[list[Statement], list[BadInput]]:
    """The statements of those lines that are right, and what is wrong with the others."""
    statements: list[Statement] = []
    errors: list[BadInput] = []
    for number, content in enumerate(text.split("\n"), 1):
        line = Line(content, Place(file, number))
        if line.empty:
            continue
        try:
            statements.append(parse_line(line))
        except BadInput as error:
            errors.append(error)
    return statements, errors


def parse_line(line: Line) -> Statement:
    """One statement. :raises BadInput: naming the column."""
    if line.empty:
        line.fail(1, "a rule is missing")
    action, column = line.take("allow or deny")
    if action not in ("allow", "deny"):
        looks_like_rule = action in ("a", "b", "c", "gpu", "mig") or action.startswith(("/", *_CLASSES))
        hint = f"a rule starts with allow or deny: allow {line.text}" if looks_like_rule else None
        line.fail(column, f"expected allow or deny, not {action!r}", hint)
    return parse_subject(line, allow=action == "allow")


def parse_subject(line: Line, *, allow: bool, access: str | None = None) -> Statement:
    """The part of a statement behind ``allow`` or ``deny``; if ``access`` is given it may not be in the line.

    :raises BadInput: naming the column.
    """
    word, column = line.take(_EXPECTED)
    optional = word.startswith("-")
    if optional:
        word, column = word[1:], column + 1
    subject = _subject(line, word, column)
    if access is not None and (given := line.peek()) is not None:
        line.fail(given[1], f"the access is given twice: here ({given[0]}) and by itself ({access})")
    if optional and isinstance(subject, Numbers | NodeSet):
        line.fail(column - 1, f"- is for what this host may lack; {subject} is the same everywhere")
    if subject == Numbers("a") and access not in (None, letters(ALL_ACCESS)):
        line.fail(column, f"a stands for every device and every access; {access!r} cannot narrow it")
    if access is None and (line.peek() is not None or (isinstance(subject, Numbers) and subject.type != "a")):
        access = _access(line, *line.take("an access of r, w and m"))
    line.finish()
    return Statement(allow, subject, access or letters(ALL_ACCESS), optional, line.place(column))


def parse_access(line: Line) -> str:
    """An access alone: ``rw``. :raises BadInput: naming the column."""
    access = _access(line, *line.take("an access of r, w and m"))
    line.finish()
    return access


def parse_rules(text: str, *, file: str | None = None) -> list[Rule]:
    """The rules of a text that names devices by numbers alone.

    :raises BadPolicy: as parse_statements; also for a statement that a host must be asked about.
    """
    return [_rule(statement) for statement in parse_statements(text, file=file)]


def parse_rule(text: str, *, file: str | None = None, line: int | None = None) -> Rule:
    """One such rule: ``allow c 195:* rw``. :raises BadInput: naming the column."""
    return _rule(parse_line(Line(text, Place(file, line))))


def parse_device(text: str, *, allow: bool, file: str | None = None, line: int | None = None) -> Rule:
    """What one would write to devices.allow or devices.deny: ``c 195:* rw``. :raises BadInput: see above."""
    return _rule(parse_subject(Line(text, Place(file, line)), allow=allow))


def _rule(statement: Statement) -> Rule:
    subject = statement.subject
    if not isinstance(subject, Numbers):
        raise statement.place.error(f"{subject} must be looked up on a host; only numbers are taken here")
    return Rule(statement.allow, subject.type, subject.major, subject.minor, statement.access, statement.place)


def _subject(line: Line, word: str, column: int) -> Subject:
    if word in ("a", "b", "c"):
        return _everything(line) if word == "a" else _numbers(line, cast(DeviceType, word))
    if word.startswith("/"):
        return Glob(word) if re.search(r"[*?\[]", word) else Path(word)
    for prefix, kind in _CLASSES.items():
        if word.startswith(prefix):
            if word == prefix:
                line.fail(column, f"{word!r} names no driver: /proc/devices lists them")
            return DeviceClass(kind, word.removeprefix(prefix))
    if word in ("gpu", "mig"):
        return _gpu(line, word)
    if word in NODE_SETS:
        return NodeSet(word)
    raise line.place(column).error(f"expected {_EXPECTED}; not {word!r}", _meant(word))


def _gpu(line: Line, word: str) -> GpuName | MigName:
    if word == "gpu":
        name, column = line.take("a GPU: an index, a UUID, a PCI address or all")
        if not _GPU.fullmatch(name):
            hint = f"write: mig {name}" if name.startswith("MIG-") else None
            line.fail(column, f"expected an index, a UUID (GPU-…), a PCI address or all, not {name!r}", hint)
        return GpuName(name)
    name, column = line.take("a MIG device: its UUID")
    if not _MIG.fullmatch(name):
        line.fail(column, f"expected a UUID (MIG-…), not {name!r}")
    return MigName(name)


def _meant(word: str) -> str | None:
    for prefix, kind in (("GPU-", "gpu"), ("MIG-", "mig")):
        if word.startswith(prefix):
            return f"write: {kind} {word}"
    if word.startswith(("nvidia", "dri/", "kfd")):
        return f"a node is named by its path: /dev/{word}"
    return None


def _everything(line: Line) -> Numbers:
    """``a`` alone, or as devices.list prints it. The kernel ignores what else follows an ``a``: a trap."""
    column = (line.peek() or ("", 0))[1]
    rest = line.rest()
    words = [word for word, _ in rest]
    if words and (len(words) != 2 or words[0] != "*:*" or _access(line, *rest[1]) != letters(ALL_ACCESS)):
        line.fail(
            column,
            f"a stands for every device and every access; {' '.join(words)!r} cannot narrow it",
            "write one rule for c and one for b instead",
        )
    return Numbers("a")


def _numbers(line: Line, kind: DeviceType) -> Numbers:
    text, column = line.take("device numbers, such as 195:0 or 195:*")
    major, colon, minor = text.partition(":")
    if not colon:
        line.fail(column, f"expected MAJOR:MINOR, not {text!r}")
    return Numbers(
        kind,
        _number(line, major, column, "major", MAX_MAJOR),
        _number(line, minor, column + len(major) + 1, "minor", MAX_MINOR),
    )


def _number(line: Line, text: str, column: int, what: Literal["major", "minor"], top: int) -> int | None:
    if text == "*":
        return None
    if not (text.isascii() and text.isdigit()):
        line.fail(column, f"expected a {what} number or *, not {text!r}")
    # Compared by length first: Python refuses to convert thousands of digits.
    digits = text.lstrip("0") or "0"
    if len(digits) > len(str(top)) or int(digits) > top:
        line.fail(column, f"{what} {text} is out of range: 0 to {top}")
    return int(digits)


def _access(line: Line, text: str, column: int) -> str:
    for index, letter in enumerate(text):
        if letter not in "rwm":
            line.fail(column + index, f"unknown access {letter!r}: r, w and m are known")
        if letter in text[:index]:
            line.fail(column + index, f"access {letter!r} is given twice")
    return letters(mask(text))
