# SPDX-License-Identifier: Apache-2.0
"""From a policy to rules in numbers: looks up on a host what its statements name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from gpuiso.errors import BadInput, Unknown
from gpuiso.gpu.inventory import build_inventory
from gpuiso.gpu.majors import registered
from gpuiso.gpu.model import DeviceNode, Inventory
from gpuiso.host.protocol import Host
from gpuiso.policy.document import Document
from gpuiso.policy.glob import device_nodes, is_glob, matcher
from gpuiso.policy.gpus import Missing, gpu_nodes, mig_nodes
from gpuiso.policy.limits import Bytes, GpuMax
from gpuiso.policy.nodes import NODE_SETS
from gpuiso.policy.place import Remark, raise_errors
from gpuiso.policy.remarks import remarks
from gpuiso.policy.rule import DeviceType, Rule, RuleType
from gpuiso.policy.statement import DeviceClass, Glob, GpuName, MigName, NodeSet, Numbers, Path, Statement

__all__ = ["ResolvedPolicy", "read_resolved", "resolve"]

_BY_NUMBERS = re.compile(r"/dev/(char|block)/([0-9]{1,4}):([0-9]{1,7})")
_KINDS: dict[str, DeviceType] = {"char": "c", "block": "b"}

_Device = tuple[RuleType, int | None, int | None]


@dataclass(frozen=True)
class ResolvedPolicy:
    """A policy in the kernel's terms.

    ``rules`` and ``default_allow`` decide every device if ``restricts_devices``; otherwise the policy says nothing
    about devices (``rules`` is empty, ``default_allow`` true). A limit that is None, and a file that is not in
    ``files``, stays as it is; ``files`` maps a cgroup file to what is written to it, one write(2) an item.
    ``remarks`` are what is probably not meant.
    """

    rules: tuple[Rule, ...]
    default_allow: bool
    gpu_max: GpuMax | None = None
    memory_max: Bytes | None = None
    files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    restricts_devices: bool = True
    remarks: tuple[Remark, ...] = ()


def resolve(
    policy: Document | Sequence[Statement], host: Host, *, inventory: Inventory | None = None
) -> ResolvedPolicy:
    """The policy on this host; ``inventory`` is built if a GPU is named and none is given.

    :raises BadPolicy: with every statement that names what this host does not have or does not tell.
    """
    resolved, errors = read_resolved(policy, host, inventory=inventory)
    raise_errors(errors)
    return resolved


def read_resolved(
    policy: Document | Sequence[Statement], host: Host, *, inventory: Inventory | None = None
) -> tuple[ResolvedPolicy, list[BadInput]]:
    """What of a policy can be resolved, and what is wrong with the rest."""
    document = policy if isinstance(policy, Document) else Document(tuple(policy))
    lookup = _Lookup(host, inventory)
    errors: list[BadInput] = []
    rules: list[Rule] = []
    for statement in document.statements or ():
        try:
            rules += [
                Rule(statement.allow, kind, major, minor, statement.access, statement.place)
                for kind, major, minor in dict.fromkeys(lookup.devices(statement))
            ]
        except Missing as error:
            if not statement.optional:
                errors.append(statement.place.error(error.message, error.hint))
        except Unknown as error:
            errors.append(statement.place.error(f"cannot be known here: {error.message}", error.hint))
        except ValueError as error:  # numbers that no kernel gives out
            errors.append(statement.place.error(f"{statement.subject}: {error}"))
    restricts = document.statements is not None or document.default_allow is not None
    default_allow = not restricts if document.default_allow is None else document.default_allow
    said = [*lookup.remarks, *(remarks(document.statements, rules, default_allow=default_allow) if restricts else ())]
    resolved = ResolvedPolicy(
        tuple(rules),
        default_allow,
        document.gpu_max,
        document.gpu_memory_max,
        document.files,
        restricts,
        tuple(said),
    )
    return resolved, errors


class _Lookup:
    def __init__(self, host: Host, inventory: Inventory | None) -> None:
        self._host = host
        self._given = inventory
        self.remarks: list[Remark] = []

    @cached_property
    def _inventory(self) -> Inventory:
        return self._given or build_inventory(self._host)

    def devices(self, statement: Statement) -> list[_Device]:
        """:raises Missing: there is no such device. :raises Unknown: the host does not tell."""
        subject = statement.subject
        if isinstance(subject, Numbers):
            return [(subject.type, subject.major, subject.minor)]
        if isinstance(subject, NodeSet):
            return [("c", major, minor) for major, minor in NODE_SETS[subject.name].values()]
        if isinstance(subject, Path):
            return [self._path(subject.path)]
        if isinstance(subject, Glob):
            return self._glob(statement, subject.pattern)
        if isinstance(subject, DeviceClass):
            return self._class(statement, subject)
        return self._gpu(statement, subject)

    def _path(self, path: str) -> _Device:
        if match := _BY_NUMBERS.fullmatch(path):
            # systemd makes these links for nodes that exist; the name itself says all there is to know.
            return _KINDS[match[1]], int(match[2]), int(match[3])
        node = self._host.stat(path)
        if node is None:
            raise Missing(f"{path} does not exist", f"write -{path} if it may be missing")
        if node.type not in ("b", "c"):
            raise Missing(f"{path} is not a device node")
        return node.type, node.major, node.minor

    def _glob(self, statement: Statement, pattern: str) -> list[_Device]:
        found: list[_Device] = [
            (node.type, node.major, node.minor)
            for _, node in device_nodes(self._host, pattern)
            if node.type in ("b", "c")
        ]
        self._remark_if_empty(statement, found, f"no device node matches {pattern}")
        return found

    def _class(self, statement: Statement, subject: DeviceClass) -> list[_Device]:
        pattern = subject.pattern
        if pattern == "*":
            return [(subject.type, None, None)]
        if pattern.isascii() and pattern.isdigit() and len(pattern) <= 4:
            return [(subject.type, int(pattern), None)]
        names = registered(self._host, subject.type)
        match = matcher(pattern) if is_glob(pattern) else pattern.__eq__
        found: list[_Device] = [
            (subject.type, major, None) for major, held in sorted(names.items()) if any(map(match, held))
        ]
        if not found and not is_glob(pattern):
            raise Missing(f"no driver {pattern!r} in /proc/devices", f"write -{subject} if it may be missing")
        self._remark_if_empty(statement, found, f"no driver in /proc/devices matches {pattern}")
        return found

    def _gpu(self, statement: Statement, subject: GpuName | MigName) -> list[_Device]:
        find = gpu_nodes if isinstance(subject, GpuName) else mig_nodes
        try:
            nodes = find(self._inventory, subject.name, allow=statement.allow)
        except Missing as error:
            if self._inventory.not_examined:
                unseen = f"; not examined: {'; '.join(self._inventory.not_examined[:3])}"
                raise Missing(error.message, f"{error.hint or ''}{unseen}".removeprefix("; ")) from None
            raise
        return [device for node in nodes if (device := self._node(statement, subject, node)) is not None]

    def _node(self, statement: Statement, subject: GpuName | MigName, node: DeviceNode) -> _Device | None:
        """The numbers the driver registered: a stale node may carry others."""
        if node.major is not None and node.minor is not None:
            return "c", node.major, node.minor
        if node.required and statement.allow and not statement.optional:
            raise Missing(
                f"{subject} needs {node.path}, whose driver is not loaded: its numbers are not known",
                "load it first: nvidia-modprobe -u -c 0" if node.role == "uvm" else None,
            )
        if not statement.allow:
            message = f"{node.path} cannot be denied: its driver is not loaded, so its numbers are not known"
            self.remarks.append(Remark(statement.place, message))
        return None

    def _remark_if_empty(self, statement: Statement, found: Sequence[_Device], message: str) -> None:
        if not found and not statement.optional:
            self.remarks.append(Remark(statement.place, message, "a - before it says that this may be so"))
