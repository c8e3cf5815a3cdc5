# SPDX-License-Identifier: Apache-2.0
"""YAML (and so JSON) to a tree in which everything knows its place and scalars are the text that was written.

What YAML 1.1 makes of a plain scalar (``on`` is true, ``1:30`` is 90, ``010`` is 8) never happens: each field of a
policy reads its own text. Tags are refused for the same reason. An alias stands for the same node, not a copy, and
may not lead into itself, so no text stands for more than it is long.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gpuiso.errors import BadInput
from gpuiso.policy.place import Place

__all__ = ["MOST_DEPTH", "MOST_NODES", "Mapping", "Node", "Scalar", "Sequence", "read_tree"]

MOST_DEPTH = 16
MOST_NODES = 200_000


@dataclass(frozen=True)
class Scalar:
    """``exact``: a column in the text is a column of the file behind ``place``."""

    text: str
    place: Place
    exact: bool = True
    kind = "a text"


@dataclass(frozen=True)
class Sequence:
    items: tuple[Node, ...]
    place: Place
    kind = "a list"


@dataclass(frozen=True)
class Mapping:
    """``pairs`` in the order of the file; a key may stand there twice."""

    pairs: tuple[tuple[Node, Node], ...]
    place: Place
    kind = "a mapping"


Node = Scalar | Sequence | Mapping


def read_tree(text: str, *, file: str | None = None) -> Node:
    """The one document of ``text``.

    :raises BadInput: it is not YAML, holds no or several documents, tags, or too much.
    """
    import yaml

    if text.lstrip().startswith("{"):
        text = text.replace("\t", " ")  # JSON may be indented with tabs, which YAML is not
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return _Builder(file, yaml.parse(text, Loader=loader)).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = ", ".join(part for part in (error.context, error.problem) if part)
        raise BadInput(
            f"not YAML: {what}",
            file=file,
            line=mark.line + 1 if mark else None,
            column=mark.column + 1 if mark else None,
        ) from None
    except yaml.YAMLError as error:
        raise BadInput(f"not YAML: {' '.join(str(error).split())}", file=file) from None


class _Builder:
    def __init__(self, file: str | None, events: Iterator[Any]) -> None:
        self._file = file
        self._events = events
        self._anchors: dict[str, Node] = {}
        self._nodes = 0

    def document(self) -> Node:
        self._next()  # the start of the stream
        start = self._next()
        if type(start).__name__ == "StreamEndEvent":
            raise BadInput("an empty document", file=self._file)
        node = self._node(self._next(), 0)
        self._next()  # the end of the document
        after = self._next()
        if type(after).__name__ != "StreamEndEvent":
            raise self._place(after).error("a second document: a policy is one")
        return node

    def _next(self) -> Any:
        return next(self._events)

    def _place(self, event: Any) -> Place:
        return Place(self._file, event.start_mark.line + 1, event.start_mark.column + 1)

    def _node(self, event: Any, depth: int) -> Node:
        place = self._place(event)
        self._nodes += 1
        if depth > MOST_DEPTH:
            raise place.error(f"nested more than {MOST_DEPTH} deep")
        if self._nodes > MOST_NODES:
            raise place.error(f"more than {MOST_NODES} values")
        kind = type(event).__name__
        if kind == "AliasEvent":
            if event.anchor not in self._anchors:
                raise place.error(f"*{event.anchor} does not stand for anything that came before")
            return self._anchors[event.anchor]
        if event.tag is not None:
            raise place.error(f"the tag {event.tag} has no meaning in a policy")
        node: Node
        if kind == "ScalarEvent":
            node = self._scalar(event, place)
        elif kind == "SequenceStartEvent":
            node = Sequence(tuple(self._items("SequenceEndEvent", depth)), place)
        else:
            items = list(self._items("MappingEndEvent", depth))
            node = Mapping(tuple(zip(items[::2], items[1::2], strict=True)), place)
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return node

    def _items(self, end: str, depth: int) -> Iterator[Node]:
        while type(event := self._next()).__name__ != end:
            yield self._node(event, depth + 1)

    def _scalar(self, event: Any, place: Place) -> Scalar:
        one_line = event.start_mark.line == event.end_mark.line
        exact = one_line and event.anchor is None and event.style not in ("|", ">")
        if exact and event.style in ("'", '"'):
            place = Place(place.file, place.line, (place.column or 1) + 1)
        return Scalar(event.value, place, exact)
