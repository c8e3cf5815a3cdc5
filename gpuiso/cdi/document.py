# SPDX-License-Identifier: Apache-2.0
"""Text to a tree of YAML nodes, read as the reference library reads it.

The reference hands JSON and YAML files alike to a YAML 1.1 parser that is a port of libyaml, takes the first
document and ignores what follows. libyaml itself (through PyYAML) is therefore the parser here, and the
meaning of plain scalars is that of Go's yaml.v2 (resolve.go), which differs from PyYAML's: ``0o17`` is a
number, ``1:30`` is not, ``y`` is true.
"""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass
from typing import Any, Protocol

from gpuiso.errors import BadInput

__all__ = ["Node", "Problem", "Scalar", "compose", "is_merge_key", "plain_meaning", "scalar"]

Scalar = str | int | float | bool | None

PLAIN = "plain"
QUOTED = "quoted"
_STANDARD = "tag:yaml.org,2002:"

_WORDS: dict[str, Scalar] = dict.fromkeys(("", "~", "null", "Null", "NULL"))
for _word in ("y", "yes", "true", "on"):
    _WORDS |= dict.fromkeys((_word, _word.capitalize(), _word.upper()), True)
for _word in ("n", "no", "false", "off"):
    _WORDS |= dict.fromkeys((_word, _word.capitalize(), _word.upper()), False)
for _word in ("inf", "Inf", "INF"):
    _WORDS |= {f".{_word}": math.inf, f"+.{_word}": math.inf, f"-.{_word}": -math.inf}
_WORDS |= dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan)

_SPECIAL_START = frozenset("yYnNtTfFoO~0123456789+-.")
_INT = re.compile(r"([+-]?)(?:0[xX]([0-9a-fA-F]+)|0[bB]([01]+)|0[oO]?([0-7]+)|(0|[1-9][0-9]*))\Z")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z")


class Node(Protocol):
    """A node as yaml.nodes has it: ``id`` is scalar, sequence or mapping, ``value`` text, nodes or pairs of
    nodes.
    """

    id: str
    tag: str
    value: Any
    start_mark: Any


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a file is refused. ``where`` is a path like ``devices[0].name``; line and column count from 1."""

    where: str
    message: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" if self.where else self.message

    def as_error(self, file: str) -> BadInput:
        return BadInput(str(self), file=file, line=self.line, column=self.column)


def compose(data: bytes) -> Node | Problem | None:
    """The root of the first document in ``data``, None if there is none, or why it cannot be parsed.

    A scalar's tag is ``plain`` or ``quoted`` unless the document gives one.
    """
    import yaml

    if (problem := _directive_problem(data)) is not None:
        return problem
    try:
        loader = _loader()(data)
        if not loader.check_node():
            return None
        node: Node | None = loader.get_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        text = ", ".join(part for part in (error.context, error.problem) if part)
        return Problem("", f"not YAML: {text}", mark.line + 1 if mark else None, mark.column + 1 if mark else None)
    except yaml.YAMLError as error:
        return Problem("", f"not YAML: {' '.join(str(error).split())}")
    return node


def scalar(node: Node) -> Scalar:
    """What a scalar means. Raises ValueError if its explicit tag does not fit its text."""
    tag, text = node.tag, str(node.value)
    if tag == QUOTED:
        return text
    if tag == PLAIN:
        return plain_meaning(text) if not text or text[0] in _SPECIAL_START else text
    return _tagged(tag.removeprefix(_STANDARD), text) if tag.startswith(_STANDARD) else text


def is_merge_key(node: Node) -> bool:
    return bool(node.value == "<<") and node.tag in (PLAIN, f"{_STANDARD}merge")


def plain_meaning(text: str) -> Scalar:
    """The meaning of an untagged, unquoted scalar (resolve() of yaml.v2)."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] == ".":
        return _finite(text) if _FLOAT.match(text) else text
    if text[0] not in "+-0123456789":
        return text
    bare = text.replace("_", "")
    if match := _INT.match(bare):
        sign, base16, base2, base8, base10 = match.groups()
        digits, base = next((d, b) for d, b in ((base16, 16), (base2, 2), (base8, 8), (base10, 10)) if d)
        number = int(digits, base) if len(digits) <= 64 else 2**64
        number = -number if sign == "-" else number
        if -(2**63) <= number < 2**64:
            return number
    return _finite(bare, otherwise=text) if _FLOAT.match(bare) else text


def _finite(text: str, otherwise: str | None = None) -> Scalar:
    number = float(text)
    return number if math.isfinite(number) else otherwise or text


def _tagged(kind: str, text: str) -> Scalar:
    if kind in ("str", "merge"):
        return text
    if kind == "binary":
        import base64

        return base64.b64decode("".join(text.split()), validate=True).decode(errors="replace")
    if kind not in ("bool", "int", "float", "null", "timestamp"):
        return text
    value = plain_meaning(text)
    if kind == "float" and type(value) is int:
        return float(value)
    wanted = {"bool": bool, "int": int, "float": float, "null": type(None), "timestamp": str}[kind]
    if type(value) is not wanted:
        raise ValueError(f"{text!r} is no {kind}")
    return value


def _directive_problem(data: bytes) -> Problem | None:
    """yaml.v2 refuses a %YAML directive other than 1.1, which libyaml lets pass."""
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        words = line.split()
        if not words or words[0].startswith(b"#"):
            continue
        if not words[0].startswith(b"%"):
            return None
        if words[0] == b"%YAML" and words[1:2] != [b"1.1"]:
            return Problem("", "not YAML 1.1: the %YAML directive names another version", number, 1)
    return None


@functools.cache
def _loader() -> Any:
    import yaml

    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class Loader(base):  # type: ignore[misc]
        """Leaves scalars untyped: their meaning depends on the field they are read into."""

        def resolve(self, kind: type, value: str, implicit: Any) -> str:
            return PLAIN if isinstance(implicit, tuple) and implicit[0] else QUOTED

        def descend_resolver(self, *_: Any) -> None:
            pass

        def ascend_resolver(self) -> None:
            pass

    return Loader
