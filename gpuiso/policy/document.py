# SPDX-License-Identifier: Apache-2.0
"""A policy: device rules, GPU limits and cgroup files, from YAML, JSON or a plain text of rules.

::

    gpuiso: 1
    default: deny
    devices:
      - allow default-nodes
      - allow gpu 0
      - {deny: /dev/nvidia-uvm-tools, access: rw}
    gpu.max: 50000 100000
    gpu.memory.max: 20G
    memory.max: 64G
    io.max:
      - "259:0 rbps=104857600"

gpuiso/policy/schema/policy.json describes the same to editors. No host is asked here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from gpuiso.errors import BadInput
from gpuiso.policy.cgroup_files import known_file, parse_file_value, similar_file
from gpuiso.policy.limits import Bytes, GpuMax, parse_bytes, parse_gpu_max
from gpuiso.policy.parse import Line, parse_access, parse_line, parse_subject, read_statements
from gpuiso.policy.place import Place, raise_errors
from gpuiso.policy.statement import Statement
from gpuiso.policy.yaml_tree import Mapping as MappingNode
from gpuiso.policy.yaml_tree import Node, Scalar, Sequence, read_tree

__all__ = ["MOST_CHARACTERS", "Document", "known_key", "parse_policy", "read_policy"]

MOST_CHARACTERS = 1 << 20
"""A longer policy is a mistake."""

_T = TypeVar("_T")
_VERSION, _DEVICES, _DEFAULT, _GPU_MAX, _GPU_MEMORY = "gpuiso", "devices", "default", "gpu.max", "gpu.memory.max"
_KEYS = (_VERSION, _DEVICES, _DEFAULT, _GPU_MAX, _GPU_MEMORY)
_FALSE = Scalar("false", Place())
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")
# The first line of a document: an opened brace, a document's start, or a key with its colon.
_DOCUMENT = re.compile(r"""\{|---|%|(?:"[^"\n]*"|'[^'\n]*'|[^\s#:]+)\s*:(?:\s|$)""")


@dataclass(frozen=True)
class Document:
    """A policy as written. What it does not speak of is None (``files``: not in there) and stays as it is.

    ``default_allow`` tells what holds for devices of which no statement speaks. ``files`` maps a cgroup file to what
    is written to it, one write(2) an item. ``places`` tells where each key stands.
    """

    statements: tuple[Statement, ...] | None = None
    default_allow: bool | None = None
    gpu_max: GpuMax | None = None
    gpu_memory_max: Bytes | None = None
    files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    places: Mapping[str, Place] = field(default_factory=dict, compare=False, repr=False)


def known_key(name: str) -> bool:
    """Whether a policy may have a key of that name."""
    return name in _KEYS or known_file(name)


def parse_policy(text: str, *, file: str | None = None) -> Document:
    """:raises BadPolicy: with all errors, each naming file, line and column."""
    document, errors = read_policy(text, file=file)
    raise_errors(errors)
    return document


def read_policy(text: str, *, file: str | None = None) -> tuple[Document, list[BadInput]]:
    """What is right in a policy, and what is wrong with it.

    A text whose first line is no key and no brace is a text of rules, unless ``file`` ends with .yaml, .yml or .json.
    """
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    if len(text) > MOST_CHARACTERS:
        return Document(), [BadInput(f"longer than {MOST_CHARACTERS} characters", file=file)]
    if found := _UNPRINTABLE.search(text):
        line, start = text.count("\n", 0, found.start()) + 1, text.rfind("\n", 0, found.start()) + 1
        place = Place(file, line, found.start() - start + 1)
        return Document(), [place.error(f"the character {found[0]!a} cannot stand in a policy")]
    first = next((line.strip() for line in text.split("\n") if line.strip() and line.lstrip()[0] != "#"), None)
    if first is None:
        hint = "to deny everything write: deny a"
        return Document(), [BadInput("neither rules nor a document: nothing but comments", file=file, hint=hint)]
    if _DOCUMENT.match(first) or (file or "").endswith((".yaml", ".yml", ".json")):
        return _Reader(text, file).read()
    statements, errors = read_statements(text, file=file)
    return Document(tuple(statements)), errors


class _Reader:
    def __init__(self, text: str, file: str | None) -> None:
        self._text = text
        self._file = file
        self._errors: list[BadInput] = []

    def read(self) -> tuple[Document, list[BadInput]]:
        try:
            root = read_tree(self._text, file=self._file)
        except BadInput as error:
            return Document(), [error]
        if not isinstance(root, MappingNode):
            return Document(), [root.place.error(f"a policy is a mapping of keys to values, not {root.kind}")]
        fields = self._fields(root)
        if _VERSION in fields:
            self._value(fields[_VERSION], _version)
        else:
            self._errors.append(root.place.error("the key gpuiso is missing", "a policy says its version: gpuiso: 1"))
        document = Document(
            statements=self._statements(fields[_DEVICES]) if _DEVICES in fields else None,
            default_allow=self._value(fields[_DEFAULT], _default) if _DEFAULT in fields else None,
            gpu_max=self._value(fields[_GPU_MAX], parse_gpu_max) if _GPU_MAX in fields else None,
            gpu_memory_max=self._value(fields[_GPU_MEMORY], parse_bytes) if _GPU_MEMORY in fields else None,
            files=self._files({name: node for name, node in fields.items() if name not in _KEYS}),
            places={name: node.place for name, node in fields.items()},
        )
        return document, sorted(self._errors, key=lambda error: (error.line or 0, error.column or 0))

    def _fields(self, mapping: MappingNode) -> dict[str, Node]:
        """The values by key; keys that are not known or were given before are reported."""
        found: dict[str, Node] = {}
        for key, value in mapping.pairs:
            if not isinstance(key, Scalar):
                self._errors.append(key.place.error(f"a key is a word, not {key.kind}"))
            elif key.text in found:
                before = found[key.text].place.line
                self._errors.append(key.place.error(f"{key.text} is given twice, first in line {before}"))
            else:
                found[key.text] = value
                if not known_key(key.text):
                    similar = similar_file(key.text, _KEYS)
                    hint = f"did you mean {similar}?" if similar else "docs/policy.md lists what a policy may set"
                    self._errors.append(key.place.error(f"unknown key {key.text!r}", hint))
        return found

    def _value(self, node: Node, parse: Callable[[str], _T]) -> _T | None:
        """None if the value is wrong, which is reported."""
        try:
            if not isinstance(node, Scalar):
                raise ValueError(f"expected one value, not {node.kind}")
            if not node.text:
                raise ValueError("a value is missing")
            return parse(node.text)
        except ValueError as error:
            self._errors.append(node.place.error(str(error)))
            return None

    def _files(self, fields: Mapping[str, Node]) -> dict[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = {}
        for name, node in fields.items():
            if not known_file(name):
                continue
            lines: list[str] = []
            for item in node.items if isinstance(node, Sequence) else (node,):
                try:
                    if not isinstance(item, Scalar):
                        raise ValueError(f"expected a value, not {item.kind}")
                    lines += parse_file_value(name, item.text)
                    if len(lines) > 1:
                        parse_file_value(name, "\n".join(lines))
                except ValueError as error:
                    self._errors.append(item.place.error(f"{name}: {error}"))
            found[name] = tuple(lines)
        return found

    def _statements(self, node: Node) -> tuple[Statement, ...]:
        if not isinstance(node, Sequence):
            hint = "an empty list, [], gives no device at all" if node == Scalar("", node.place) else None
            self._errors.append(node.place.error(f"devices is a list of rules, not {node.kind}", hint))
            return ()
        statements = []
        for item in node.items:
            try:
                statements.append(self._statement(item))
            except BadInput as error:
                self._errors.append(error)
        return tuple(statements)

    def _statement(self, node: Node) -> Statement:
        """A rule: a line, or its parts by name: ``{allow: gpu 0, access: rw}``."""
        if isinstance(node, Scalar):
            return parse_line(Line(node.text, node.place, exact=node.exact))
        if isinstance(node, Sequence):
            raise node.place.error(f"a rule is a line or a mapping, not {node.kind}")
        parts: dict[str, Scalar] = {}
        for key, value in node.pairs:
            if not isinstance(key, Scalar) or key.text not in ("allow", "deny", "access", "optional"):
                what = repr(key.text) if isinstance(key, Scalar) else key.kind
                raise key.place.error(f"a rule has allow or deny, access and optional; not {what}")
            if key.text in parts:
                raise key.place.error(f"{key.text} is given twice")
            if not isinstance(value, Scalar):
                raise value.place.error(f"{key.text}: expected a text, not {value.kind}")
            parts[key.text] = value
        actions = [action for action in ("allow", "deny") if action in parts]
        if len(actions) != 1:
            raise node.place.error("a rule has one of allow and deny")
        return _from_parts(actions[0], parts)


def _from_parts(action: str, parts: Mapping[str, Scalar]) -> Statement:
    subject = parts[action]
    line = Line(subject.text, subject.place, exact=subject.exact)
    access = parts.get("access")
    statement = parse_subject(line, allow=action == "allow", access=None if access is None else _access(access))
    optional = parts.get("optional", _FALSE)
    if optional.text not in ("true", "false"):
        raise optional.place.error(f"optional: expected true or false, not {optional.text!r}")
    if optional.text == "true" and not statement.optional:
        # The dash says the same, and knows which subjects cannot be missing.
        line = Line(f"-{subject.text.strip()}", subject.place, exact=False)
        statement = parse_subject(line, allow=statement.allow, access=None if access is None else statement.access)
    return replace(statement, place=replace(statement.place, text=str(statement)))


def _access(node: Scalar) -> str:
    return parse_access(Line(node.text, node.place, exact=node.exact))


def _version(text: str) -> int:
    if text != "1":
        raise ValueError(f"version {text!r} of policies is not known; this gpuiso reads 1")
    return 1


def _default(text: str) -> bool:
    if text not in ("allow", "deny"):
        raise ValueError(f"expected allow or deny, not {text!r}")
    return text == "allow"
