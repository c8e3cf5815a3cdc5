# SPDX-License-Identifier: Apache-2.0
"""nodes.jsonl and absent.json of a record: what a plain file cannot hold."""

from __future__ import annotations

import re
from typing import Any, cast, get_args

from gpuiso.errors import BadInput
from gpuiso.host.archive import MAX_MEMBERS
from gpuiso.host.protocol import Node, NodeType
from gpuiso.host.record_json import Place, parse

__all__ = ["DEFAULT_MODES", "MAX_LINE", "parse_absent", "parse_nodes"]

MAX_LINE = 1 << 20  # bytes
_MAX_PATH = 4096  # PATH_MAX
_MAX_DEPTH = 64
_TYPES: frozenset[str] = frozenset(get_args(NodeType))
_OCTAL = re.compile(r"(?:0o)?[0-7]{1,7}")

#: Permission bits of an entry that states none: those that raise no question.
DEFAULT_MODES: dict[NodeType, int] = {
    "b": 0o660,
    "c": 0o666,
    "d": 0o755,
    "f": 0o644,
    "l": 0o777,
    "p": 0o644,
    "s": 0o666,
}


def parse_nodes(data: bytes, file: str) -> dict[str, Node]:
    """The entries of nodes.jsonl, by path. Blank lines are skipped.

    :raises BadInput: names the line.
    """
    found: dict[str, Node] = {}
    lines: dict[str, int] = {}
    for number, line in enumerate(data.split(b"\n"), 1):
        if len(line) > MAX_LINE:
            raise BadInput(f"a line longer than {MAX_LINE >> 20} MiB", file=file, line=number)
        if not line.strip():
            continue
        place = Place(file, number)
        node = _node(parse(line, file, number), place)
        if node.path in found:
            place.fail(f"{node.path!r} stands twice, first in line {lines[node.path]}")
        found[node.path] = node
        lines[node.path] = number
        if len(found) > MAX_MEMBERS:
            place.fail(f"more than {MAX_MEMBERS} entries")
    return found


def parse_absent(data: bytes, file: str) -> frozenset[str]:
    """The paths of absent.json: looked for on the host and not there.

    :raises BadInput: not a list of paths.
    """
    place = Place(file)
    paths = place.sequence(parse(data, file))
    return frozenset(_path(path, place.key(index)) for index, path in enumerate(paths))


def _node(value: Any, place: Place) -> Node:
    entry = place.mapping(value)
    kind = _type(entry.get("type"), place.key("type"))
    path = _path(entry.get("path"), place.key("path"))
    device = kind in ("b", "c")
    target = None
    if kind == "l":
        target = place.key("target").string(entry.get("target"))
        if not target or "\0" in target or len(target) > _MAX_PATH:
            place.key("target").fail("must be 1 to 4096 characters without a null byte")
    return Node(
        path=path,
        type=kind,
        mode=_mode(entry["mode"], place.key("mode")) if "mode" in entry else DEFAULT_MODES[kind],
        uid=place.key("uid").integer(entry.get("uid", 0), 0, 2**32 - 1),
        gid=place.key("gid").integer(entry.get("gid", 0), 0, 2**32 - 1),
        # Linux keeps 12 bits of a major and 20 of a minor (include/linux/kdev_t.h).
        major=place.key("major").integer(entry.get("major"), 0, 2**12 - 1) if device else None,
        minor=place.key("minor").integer(entry.get("minor"), 0, 2**20 - 1) if device else None,
        target=target,
        size=None if entry.get("size") is None else place.key("size").integer(entry["size"]),
        ctime=None if entry.get("ctime") is None else place.key("ctime").number(entry["ctime"]),
    )


def _type(value: Any, place: Place) -> NodeType:
    if not isinstance(value, str) or value not in _TYPES:
        place.fail(f"must be one of {', '.join(sorted(_TYPES))}, not {str(value)[:20]!r}")
    return cast(NodeType, value)


def _path(value: Any, place: Place) -> str:
    path = place.string(value)
    if not path.startswith("/") or "\0" in path or len(path) > _MAX_PATH:
        place.fail(f"must be an absolute path of at most {_MAX_PATH} characters, not {path[:100]!r}")
    parts = path[1:].split("/")
    if path != "/" and any(part in ("", ".", "..") for part in parts):
        place.fail(f"must have no empty, '.' or '..' parts, not {path[:100]!r}")
    if len(parts) > _MAX_DEPTH:
        place.fail(f"must have at most {_MAX_DEPTH} parts")
    return path


def _mode(value: Any, place: Place) -> int:
    """``"0666"``, as ls and chmod write it. An integer is taken by its value: 438. Type bits are dropped."""
    if isinstance(value, str):
        if _OCTAL.fullmatch(value) is None:
            place.fail(f"must be octal digits such as '0666', not {value[:20]!r}")
        value = int(value, 8)
    return place.integer(value, 0, 0o177777) & 0o7777
