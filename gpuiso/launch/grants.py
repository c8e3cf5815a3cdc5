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

A grant is for whom it names; ``*`` is everybody but root. What it leaves out is not limited. A request is fine if one
grant alone allows all of it. Where there are no files, nothing is limited; where there are, nobody but root has
anything that no grant gives.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from gpuiso.errors import BadInput, NotPermitted, UsageError
from gpuiso.host.protocol import Host
from gpuiso.launch.account import Account
from gpuiso.launch.spec import Request, matching
from gpuiso.launch.units import Unit
from gpuiso.policy.limits import GpuMax, parse_gpu_max, parse_integer
from gpuiso.policy.place import Place
from gpuiso.policy.yaml_tree import Mapping as MappingNode
from gpuiso.policy.yaml_tree import Node, Scalar, read_tree
from gpuiso.policy.yaml_tree import Sequence as SequenceNode

__all__ = ["DIRECTORY", "Grant", "Terms", "is_grants", "load_grants", "permitted", "read_grants"]

DIRECTORY = "/etc/gpuiso/policy.d"
_KEYS = ("users", "groups", "gpus", "most", "gpu.max", "share")
_MOST = 1 << 16
_T = TypeVar("_T")


@dataclass(frozen=True)
class Grant:
    """``gpus`` are items as ``--gpus`` names them; None, like the other fields, is no limit."""

    users: frozenset[str]
    groups: frozenset[str]
    gpus: tuple[str, ...] | None = None
    most: int | None = None
    gpu_max: GpuMax | None = None
    share: bool | None = None
    place: Place = field(default=Place(), compare=False)

    def is_for(self, account: Account) -> bool:
        names = {account.name, str(account.uid)} | ({"*"} if account.uid else set())
        return bool(self.users & names or self.groups & account.groups)


@dataclass(frozen=True)
class Terms:
    """What a request may have: the request for the units that may be had, and limits."""

    request: Request
    most: int | None
    gpu_max: GpuMax | None


def is_grants(text: str) -> bool:
    """Whether a text is one of these files: has ``grants`` at the left margin."""
    return any(line.startswith(("grants:", '"grants"', '{"grants"')) for line in text.splitlines())


def load_grants(host: Host, directory: str = DIRECTORY) -> tuple[Grant, ...] | None:
    """The grants of all files in their order, None if there is no file.

    :raises BadInput: a file is wrong, or somebody but root could have written it.
    """
    names = [name for name in host.listdir(directory) or () if name.endswith((".yaml", ".yml", ".json"))]
    if not names:
        return None
    found: list[Grant] = []
    for path in (f"{directory}/{name}" for name in names):
        node = host.stat(path)
        if node is not None and (node.uid != 0 or node.mode & (stat.S_IWGRP | stat.S_IWOTH)):
            raise BadInput(
                "others than root can write this file", file=path, hint=f"chown root {path}; chmod 644 {path}"
            )
        found += read_grants(host.text(path) or "", file=path)
    return tuple(found)


def read_grants(text: str, *, file: str | None = None) -> list[Grant]:
    """:raises BadInput: names file, line and column of what is wrong."""
    root = read_tree(text, file=file)
    fields = _fields(root, ("gpuiso", "grants"), "a file of grants")
    if _text(fields.get("gpuiso", root)) != "1":
        raise root.place.error("the first line is to be gpuiso: 1")
    if "grants" not in fields:
        raise root.place.error("the key grants is missing")
    return [_grant(node) for node in _items(fields["grants"], "grants")]


def _grant(node: Node) -> Grant:
    fields = _fields(node, _KEYS, "a grant")
    users, groups = (frozenset(_words(fields.get(name), name)) for name in ("users", "groups"))
    if not users and not groups:
        raise node.place.error("a grant is for users or groups", "everybody is written users: ['*']")
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
    return Grant(users, groups, gpus, most, gpu_max, _value(fields.get("share"), _boolean), node.place)


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


def _words(node: Node | None, name: str) -> list[str]:
    return [] if node is None else [_text(item) for item in _items(node, name)]


def _text(node: Node) -> str:
    if not isinstance(node, Scalar):
        raise node.place.error(f"expected one value, not {node.kind}")
    return node.text


def permitted(
    grants: Sequence[Grant] | None,
    account: Account,
    request: Request,
    units: Sequence[Unit],
    *,
    share: bool,
    gpu_max: GpuMax | None,
) -> Terms:
    """The terms of the first grant that allows a request; without a ``gpu_max`` of its own it gets the grant's.

    :raises NotPermitted: none does, says why.
    """
    if grants is None or (account.uid == 0 and not any(grant.is_for(account) for grant in grants)):
        return Terms(request, None, gpu_max)
    reasons = []
    for grant in grants:
        if not grant.is_for(account):
            continue
        terms = _under(grant, request, units, share=share, gpu_max=gpu_max)
        if isinstance(terms, Terms):
            return terms
        reasons.append(f"{grant.place}: {terms}")
    why = "; ".join(reasons) or f"no grant in {DIRECTORY} is for this user"
    hint = f"an administrator can add a grant in {DIRECTORY}"
    raise NotPermitted(f"{account.name} may not have --gpus {request.text}: {why}", hint=hint)


def _under(
    grant: Grant, request: Request, units: Sequence[Unit], *, share: bool, gpu_max: GpuMax | None
) -> Terms | str:
    """The terms under one grant, or why it does not allow the request."""
    if share and grant.share is False:
        return "not with --share"
    if grant.most is not None and len(request.slots) > grant.most:
        return f"at most {grant.most} GPUs"
    limit = gpu_max
    if grant.gpu_max is not None and grant.gpu_max.quota is not None:
        limit = gpu_max or grant.gpu_max
        if limit.share > grant.gpu_max.share:
            return f"gpu.max at most {grant.gpu_max}"
    if grant.gpus is not None:
        allowed = {unit.id for item in grant.gpus for unit in matching(item, units)}
        request = request.within(allowed)
        if request.assign(request.wanted) is None:
            return f"only the GPUs {', '.join(grant.gpus)}"
    return Terms(request, grant.most, limit)
