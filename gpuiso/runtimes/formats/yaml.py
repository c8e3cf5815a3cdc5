# SPDX-License-Identifier: Apache-2.0
"""A YAML file of block mappings under edit, as the kubelet's is: values at the top, or one mapping below it."""

from __future__ import annotations

import json
from typing import Any

from gpuiso.errors import BadInput
from gpuiso.runtimes.formats import Path, Value, deep_set, dotted, lookup

__all__ = ["YamlDocument"]

_MOST_VALUES = 200_000  # aliases of aliases are counted as often as they are used


class YamlDocument:
    """The text of ``file``. :raises BadInput: it is not YAML, no mapping, or gives a key twice."""

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
        self._data, self._root = self._parse(text)
        self._text = text

    def _parse(self, text: str) -> tuple[dict[str, Any], Any]:
        """The values, and the nodes they come from."""
        import yaml

        try:
            root = yaml.compose(text, Loader=yaml.SafeLoader)
            self._check(root, {})
            data = yaml.safe_load(text)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark
            line, column = (None, None) if mark is None else (mark.line + 1, mark.column + 1)
            raise BadInput(f"not YAML: {error.problem}", file=self.file, line=line, column=column) from None
        except RecursionError:
            raise BadInput("not YAML that can be read: nested too deep", file=self.file) from None
        except (yaml.YAMLError, ValueError) as error:
            raise BadInput(f"not YAML: {error}", file=self.file) from None
        if data is None:
            return {}, root
        if not isinstance(data, dict):
            raise BadInput("the top of the document must be a mapping", file=self.file, line=1)
        return data, root

    def _check(self, node: Any, sizes: dict[int, int | None]) -> int:
        """How many values a node stands for, with those behind its aliases.

        :raises BadInput: a key is given twice, or an alias leads into itself or makes too much of a short text.
        """
        import yaml

        line = 0 if node is None else node.start_mark.line + 1
        if id(node) in sizes:
            known = sizes[id(node)]
            if known is None:
                raise BadInput("not YAML that can be read: an alias leads into itself", file=self.file, line=line)
            return known
        size, sizes[id(node)] = 1, None
        if isinstance(node, yaml.MappingNode):
            seen: set[tuple[str, str]] = set()
            for key, value in node.value:
                if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                    if (key.tag, key.value) in seen:
                        where = key.start_mark.line + 1
                        raise BadInput(f"{key.value} is given twice in one mapping", file=self.file, line=where)
                    seen.add((key.tag, key.value))
                size += self._check(key, sizes) + self._check(value, sizes)
        elif isinstance(node, yaml.SequenceNode):
            size += sum(self._check(one, sizes) for one in node.value)
        if size > _MOST_VALUES:
            raise BadInput(f"more than {_MOST_VALUES} values", file=self.file, line=line)
        sizes[id(node)] = size
        return size

    def _member(self, node: Any, name: str) -> tuple[Any, Any] | None:
        """The key and value nodes of a mapping's member."""
        import yaml

        if not isinstance(node, yaml.MappingNode):
            return None
        return next(((key, value) for key, value in node.value if key.value == name), None)

    def line(self, path: Path) -> int | None:
        node, line = self._root, None
        for name in path:
            member = self._member(node, name)
            if member is None:
                return None
            line, node = member[0].start_mark.line + 1, member[1]
        return line

    def set(self, path: Path, value: Value) -> None:
        old = lookup(self._data, path)
        if old == value and type(old) is type(value):
            return
        if isinstance(old, dict):
            raise BadInput(f"{dotted(path)} is a mapping, no value", file=self.file, line=self.line(path))
        node, known = self._root, 0
        while known < len(path) and (member := self._member(node, path[known])) is not None:
            node, known = member[1], known + 1
        if known == len(path):
            text = self._text[: node.start_mark.index] + _scalar(value) + self._text[node.end_mark.index :]
        else:
            text = self._with_member(node, path, known, value)
        if self._parse(text)[0] != deep_set(self._data, path, value):
            raise BadInput(f"{dotted(path)} cannot be set without disturbing the rest of the file", file=self.file)
        self._load(text)

    def _with_member(self, node: Any, path: Path, known: int, value: Value) -> str:
        import yaml

        above = node
        if known and lookup(self._data, path[:known]) is not None and not isinstance(above, yaml.MappingNode):
            raise BadInput(f"{dotted(path[:known])} is no mapping", file=self.file, line=self.line(path[:known]))
        if isinstance(above, yaml.MappingNode) and (above.flow_style or not above.value):
            raise BadInput(
                f"{dotted(path[:known]) or 'the document'} is written in braces; write it as lines first",
                file=self.file,
                line=above.start_mark.line + 1,
            )
        if isinstance(above, yaml.MappingNode):
            column = above.value[0][0].start_mark.column
            at = self._line_end(_last(above).end_mark.index)
        elif known:  # a name without a value
            column = 2 * known
            at = self._line_end(node.end_mark.index)
        else:
            column, at = 0, len(self._text)
        lines = []
        for depth, name in enumerate(path[known:]):
            tail = f" {_scalar(value)}" if depth == len(path) - known - 1 else ""
            lines.append(f"{' ' * (column + 2 * depth)}{name}:{tail}\n")
        before = self._text[:at]
        if before and not before.endswith("\n"):
            before += "\n"
        return before + "".join(lines) + self._text[at:]

    def _line_end(self, at: int) -> int:
        if at and self._text[at - 1] == "\n":
            return at
        newline = self._text.find("\n", at)
        return len(self._text) if newline < 0 else newline + 1


def _last(node: Any) -> Any:
    """The last scalar of a mapping: the end of a block mapping itself lies after the comments that follow it."""
    import yaml

    while isinstance(node, yaml.CollectionNode) and node.value and not node.flow_style:
        last = node.value[-1]
        node = last[1] if isinstance(last, tuple) else last
    return node


def _scalar(value: Value) -> str:
    import yaml

    if isinstance(value, str):
        plain = yaml.safe_dump(value, width=10_000).removesuffix("\n").removesuffix("\n...")
        return plain if "\n" not in plain else json.dumps(value)
    return json.dumps(value)
