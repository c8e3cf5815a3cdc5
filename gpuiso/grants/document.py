# SPDX-License-Identifier: Apache-2.0
"""Who may have which GPUs: the files of /etc/gpuiso/policy.d.

::

    gpuiso: 1
    grants:
      - groups: [research]
        gpus: [0, 1, "mig:1g.18gb"]
        most: 2
        gpu.max: 50000 100000
        share: true
      - users: [alice]
      - slices: [batch.slice]
        most: 1
      - containers: ["com.example.team=research"]

What a grant leaves out is not limited. :mod:`gpuiso.grants.decide` says what they come to.
"""

from __future__ import annotations

import posixpath
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from gpuiso.errors import BadInput, UsageError
from gpuiso.grants.bearer import Bearer
from gpuiso.grants.spec import matching
from gpuiso.host.protocol import Host
from gpuiso.host.protocol import Node as FileNode
from gpuiso.policy.document import known_key, read_policy
from gpuiso.policy.limits import GpuMax, parse_gpu_max, parse_integer
from gpuiso.policy.place import Place
from gpuiso.policy.slices import slices_of
from gpuiso.policy.yaml_tree import Mapping as MappingNode
from gpuiso.policy.yaml_tree import Node, Scalar, read_tree
from gpuiso.policy.yaml_tree import Sequence as SequenceNode

__all__ = ["DIRECTORY", "Grant", "grant_files", "is_grants", "load_grants", "read_grants"]

DIRECTORY = "/etc/gpuiso/policy.d"
_BEARERS = ("users", "groups", "slices", "containers")
_KEYS = (*_BEARERS, "gpus", "most", "gpu.max", "share")
_MOST = 1 << 16
_ENDINGS = (".yaml", ".yml", ".json")
#: What editors and packagers leave beside a file.
_NOT_OURS = (
    "~",
    "#",
    ".bak",
    ".old",
    ".orig",
    ".swp",
    ".rpmsave",
    ".rpmnew",
    ".rpmorig",
    ".dpkg-old",
    ".dpkg-new",
    ".dpkg-dist",
)
_LONGEST = 1 << 20  # bytes
_LOOKS_LIKE_GRANTS = re.compile(r"""^[\s{,]*["']?grants["']?\s*:""", re.MULTILINE)
_T = TypeVar("_T")


@dataclass(frozen=True)
class Grant:
    """``gpus`` are items as ``--gpus`` names them; None, like the other fields, is no limit.

    ``containers`` are annotations: a key, and the value that it is to have (None: any); the key ``*`` is every
    container. ``slices`` are names of systemd's.
    """

    users: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    slices: frozenset[str] = frozenset()
    containers: tuple[tuple[str, str | None], ...] = ()
    gpus: tuple[str, ...] | None = None
    most: int | None = None
    gpu_max: GpuMax | None = None
    share: bool | None = None
    place: Place = field(default=Place(), compare=False)

    def is_for(self, bearer: Bearer) -> bool:
        """Whether it names the bearer, or a slice that he is in."""
        if self.slices.intersection(slices_of(bearer.cgroup)):
            return True
        if bearer.annotations is not None:
            return any(key == "*" or bearer.has(key, value) for key, value in self.containers)
        return bool(self.users & bearer.names or self.groups & bearer.groups)


def is_grants(text: str) -> bool:
    """Whether a text is one of these files: a mapping that has ``grants``, or would be one if it could be read."""
    if "grants" not in text:
        return False
    try:
        root = read_tree(_without_mark(text))
    except BadInput:
        return _LOOKS_LIKE_GRANTS.search(text) is not None
    return isinstance(root, MappingNode) and any(
        isinstance(key, Scalar) and key.text == "grants" for key, _ in root.pairs
    )


def _without_mark(text: str) -> str:
    return text.removeprefix("\ufeff")


def load_grants(host: Host, directory: str = DIRECTORY) -> tuple[Grant, ...] | None:
    """The grants of all files in their order, None if no file has any.

    :raises BadInput: a file is wrong, or somebody but root could have written it.
    """
    files = grant_files(host, directory)
    if not files:
        return None
    return tuple(grant for path, text in files for grant in read_grants(text, file=path))


def grant_files(host: Host, directory: str = DIRECTORY) -> list[tuple[str, str]]:
    """The files that have grants, a path and a text each. Policies lie in the same directory.

    What cannot be told to be a policy is an error: a misspelt key or name must not mean that nothing is limited.

    :raises BadInput: a file is neither, or it or the directory can be changed by others than root.
    """
    place = host.stat(directory)
    if place is None:
        for path in (posixpath.dirname(directory), directory):
            if host.stat(path) is None and host.lstat(path) is not None:
                raise BadInput("leads nowhere: whether there are grants cannot be known", file=path)
        return []
    if place.type != "d":
        raise BadInput("is no directory", file=directory, hint="it is to hold files that say who may have which GPUs")
    _check_owner(place, directory)
    found = []
    for name in host.listdir(directory) or ():
        path = f"{directory}/{name}"
        if name.startswith(".") or name.endswith(_NOT_OURS):
            continue
        if (text := _read(host, path, named=name.endswith(_ENDINGS))) is not None:
            _check_owner(host.stat(path), path)
            found.append((path, text))
    return found


def _read(host: Host, path: str, *, named: bool) -> str | None:
    """The text of a file of grants; None if it is another one."""
    node = host.stat(path)
    if node is None or node.type != "f" or (node.size or 0) > _LONGEST:
        if not named:
            return None
        why = "leads nowhere" if node is None else "is no regular file" if node.type != "f" else "is longer than 1 MiB"
        raise BadInput(f"{why}: whether it has grants cannot be known", file=path)
    text = host.text(path) or ""
    if is_grants(text):
        if not named:
            raise BadInput(f"has grants, and its name ends with none of {', '.join(_ENDINGS)}", file=path)
        return text
    if named:
        document, errors = read_policy(text, file=path)
        if errors and not (document.places and all(map(known_key, document.places))):
            raise _neither(errors[0], text, path)
        if set(document.places) == {"gpuiso"}:
            raise BadInput("says nothing: neither who may have which GPUs nor what a policy is", file=path)
    return None


def _neither(error: BadInput, text: str, path: str) -> BadInput:
    if text.strip():
        return error
    return BadInput("is empty: it says neither who may have which GPUs nor what a policy is", file=path)


def _check_owner(node: FileNode | None, path: str) -> None:
    if node is not None and (node.uid or node.mode & (stat.S_IWGRP | stat.S_IWOTH)):
        mode = 755 if node.type == "d" else 644
        hint = f"chown root {path}; chmod {mode} {path}"
        raise BadInput("others than root can write it", file=path, hint=hint)


def read_grants(text: str, *, file: str | None = None) -> list[Grant]:
    """:raises BadInput: names file, line and column of what is wrong."""
    root = read_tree(_without_mark(text), file=file)
    fields = _fields(root, ("gpuiso", "grants"), "a file of grants")
    if "gpuiso" not in fields or _text(fields["gpuiso"]) != "1":
        raise root.place.error("the first line is to be gpuiso: 1")
    if "grants" not in fields:
        raise root.place.error("the key grants is missing")
    return [_grant(node) for node in _items(fields["grants"], "grants")]


def _grant(node: Node) -> Grant:
    fields = _fields(node, _KEYS, "a grant")
    users, groups = (frozenset(_words(fields.get(name), name)) for name in ("users", "groups"))
    slices = _slices(fields.get("slices"))
    containers = _containers(fields.get("containers"))
    if not (users or groups or slices or containers):
        raise node.place.error(f"a grant is for {', '.join(_BEARERS)}", "everybody is written users: ['*']")
    gpus = None
    if "gpus" in fields:
        gpus = tuple(_words(fields["gpus"], "gpus"))
        for item in gpus:
            try:
                matching(item, ())
            except UsageError as error:
                raise fields["gpus"].place.error(error.message, error.hint) from None
    most = _value(fields.get("most"), lambda text: parse_integer(text, 0, _MOST))
    gpu_max = _value(fields.get("gpu.max"), parse_gpu_max)
    share = _value(fields.get("share"), _boolean)
    return Grant(users, groups, slices, containers, gpus, most, gpu_max, share, node.place)


def _slices(node: Node | None) -> frozenset[str]:
    found = set()
    for item in _members(node, "slices"):
        name = _text(item)
        if not name.endswith(".slice") or "/" in name:
            raise item.place.error(f"{name!r} is no slice", "a slice is written as systemctl shows it: batch.slice")
        found.add(name)
    return frozenset(found)


def _containers(node: Node | None) -> tuple[tuple[str, str | None], ...]:
    found = []
    for item in _members(node, "containers"):
        word = _text(item)
        key, equals, value = word.partition("=")
        if key == "*" and equals:
            raise item.place.error(f"{word!r} has no key", "* alone is every container; a key is written out")
        if not key:
            raise item.place.error(f"{word!r} has no key", "an annotation is written KEY=VALUE, or KEY for any value")
        found.append((key, value if equals else None))
    return tuple(found)


def _boolean(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(f"expected true or false, not {text!r}")
    return text == "true"


def _value(node: Node | None, parse: Callable[[str], _T]) -> _T | None:
    """None if it is not there. :raises BadInput: it is wrong."""
    if node is None:
        return None
    try:
        return parse(_text(node))
    except ValueError as error:
        raise node.place.error(str(error)) from None


def _fields(node: Node, known: Sequence[str], what: str) -> Mapping[str, Node]:
    if not isinstance(node, MappingNode):
        raise node.place.error(f"{what} is a mapping of keys to values, not {node.kind}")
    found: dict[str, Node] = {}
    for key, value in node.pairs:
        name = _text(key)
        if name not in known:
            raise key.place.error(f"unknown key {name!r}", f"{what} has {', '.join(known)}")
        if name in found:
            raise key.place.error(f"{name} is given twice")
        found[name] = value
    return found


def _items(node: Node, name: str) -> Sequence[Node]:
    if not isinstance(node, SequenceNode):
        raise node.place.error(f"{name} is a list, not {node.kind}")
    return node.items


def _members(node: Node | None, name: str) -> Sequence[Node]:
    return () if node is None else _items(node, name)


def _words(node: Node | None, name: str) -> list[str]:
    return [_text(item) for item in _members(node, name)]


def _text(node: Node) -> str:
    if not isinstance(node, Scalar):
        raise node.place.error(f"expected one value, not {node.kind}")
    return node.text
