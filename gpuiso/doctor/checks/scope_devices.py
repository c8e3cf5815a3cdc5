# SPDX-License-Identifier: Apache-2.0
"""Devices of a container's scope: what systemd's list has, what the runtime was told, what runc leaves out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from shlex import join, quote
from typing import Any

from gpuiso.doctor.finding import Evidence, Fix, Rule
from gpuiso.doctor.machine import Subject
from gpuiso.doctor.toolkit import runc_version
from gpuiso.doctor.unit_settings import UnitSettings, covers, unit_settings
from gpuiso.errors import NotFound, Unknown
from gpuiso.host.process import unified_cgroup
from gpuiso.host.protocol import Node

__all__ = [
    "DEVCHAR",
    "LASTING",
    "NOTICE",
    "affected",
    "allow_in_scope",
    "bears",
    "config_of",
    "in_view",
    "known_to_runtime",
    "lacking",
    "link_fixes",
    "missing_links",
    "runc_evidence",
    "scope_of",
    "settings_of",
]

NOTICE = "https://github.com/NVIDIA/nvidia-container-toolkit/issues/48"

DEVCHAR = Rule(
    "GPU-DEVCHAR-SYMLINK-MISSING",
    "error",
    "GPU nodes have no links in /dev/char, and this runc needs them",
    "runc 1.1.3 to 1.1.6 leaves devices without a /dev/char link out of systemd's list: a daemon-reload takes them",
    (
        NOTICE,
        "https://github.com/opencontainers/runc/issues/3708",
        "https://github.com/opencontainers/runc/pull/3842",
    ),
)

_AFFECTED_RUNC = ((1, 1, 3), (1, 1, 7))
LASTING = Fix(
    "For good: create the container again with its GPUs requested by CDI (--device nvidia.com/gpu=UUID), so that"
    " its engine tells systemd of them"
)


def scope_of(path: str) -> str | None:
    name = path.rstrip("/").rpartition("/")[2]
    return name if name.endswith(".scope") else None


def allow_in_scope(scope: str, nodes: Iterable[tuple[str, Node]]) -> Fix:
    kind = {"c": "char", "b": "block"}
    allow = [f"DeviceAllow=/dev/{kind[node.type]}/{node.major}:{node.minor} rw" for _, node in nodes]
    return Fix(
        "Give the running container its GPUs back, through systemd, which then keeps them",
        f"sudo systemctl set-property --runtime {quote(scope)} {join(allow)}",
    )


def settings_of(subject: Subject, scope: str) -> UnitSettings | None:
    try:
        return unit_settings(subject.host, scope)
    except Unknown:
        return None


def lacking(subject: Subject, settings: UnitSettings, nodes: Iterable[tuple[str, Node]]) -> list[str]:
    """The nodes that no entry of the unit's list covers."""
    return [
        path
        for path, node in nodes
        if not any(covers(subject.host, entry, path, node) for entry in settings.allow if entry.spec != "char-*")
    ]


def in_view(subject: Subject) -> Iterator[tuple[str, Node]]:
    """The nodes of NVIDIA's driver in the process's own /dev, those that CUDA can do without as well."""
    for each in subject.machine.nvidia_nodes:
        node = subject.stat(each.path)
        if node is not None and node.type in ("b", "c"):
            yield each.path, node


def known_to_runtime(config: Mapping[str, Any] | None, nodes: Iterable[tuple[str, Node]]) -> bool:
    """Whether an OCI config has a rule that allows each of the nodes."""
    if config is None:
        return False
    resources = (config.get("linux") or {}).get("resources") or {}
    rules = [rule for rule in resources.get("devices") or () if isinstance(rule, dict) and rule.get("allow")]
    return all(any(_rule_allows(rule, node) for rule in rules) for _, node in nodes)


def _rule_allows(rule: Mapping[str, Any], node: Node) -> bool:
    if not {"r", "w"} <= set(str(rule.get("access") or "rwm")) or rule.get("type") not in (node.type, "a", None):
        return False
    return all(rule.get(key) in (None, -1, number) for key, number in (("major", node.major), ("minor", node.minor)))


def config_of(subject: Subject) -> tuple[str, dict[str, Any]] | None:
    """The OCI config of the process's container and its path; None where that is not known."""
    container = subject.container
    if container is None or container.config is None:
        return None
    try:
        config = json.loads(subject.host.text(container.config) or "null")
    except (Unknown, ValueError, RecursionError):
        return None
    return (container.config, config) if isinstance(config, dict) else None


def missing_links(subject: Subject, nodes: Iterable[tuple[str, Node]]) -> list[str]:
    links = [f"/dev/char/{node.major}:{node.minor}" for _, node in nodes if node.type == "c"]
    return [link for link in links if subject.host.lstat(link) is None]


def affected(subject: Subject) -> bool:
    version = runc_version(subject.host)
    return version is not None and _AFFECTED_RUNC[0] <= version < _AFFECTED_RUNC[1]


def runc_evidence(subject: Subject) -> tuple[Evidence, ...]:
    version = runc_version(subject.host)
    return () if version is None else (Evidence("runc --version", ".".join(map(str, version))),)


def link_fixes(nodes: Iterable[tuple[str, Node]]) -> tuple[Fix, ...]:
    links = " && ".join(
        f"ln -sfn ..{path.removeprefix('/dev')} /dev/char/{node.major}:{node.minor}" for path, node in nodes
    )
    return (
        Fix(
            "Make the links, for containers started from now on until the next boot (nvidia-ctk system"
            " create-dev-char-symlinks --create-all makes them for all nodes; have udev or a unit do it at boot)",
            f"sudo sh -c {quote(f'mkdir -p /dev/char && {links}')}",
        ),
        Fix("Or install runc 1.1.7 or later, which does not need them"),
    )


def bears(subject: Subject, cgroup: str) -> bool:
    """Whether this process bears the finding about its container: of those that hold a GPU, the first one."""
    if subject.asked:
        return True
    holders = []
    for pid in {holder.pid for holder in subject.machine.holders}:
        try:
            if unified_cgroup(subject.host, pid) == cgroup:
                holders.append(pid)
        except (NotFound, Unknown):
            continue  # it ended, or is not ours to see
    return subject.pid == min(holders, default=subject.pid)
