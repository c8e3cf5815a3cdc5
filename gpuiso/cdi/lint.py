# SPDX-License-Identifier: Apache-2.0
"""What the container engines accept and yet goes wrong: warnings about a spec on a given host.

Every check is a pure function of a host; where the host cannot tell (a record that lacks the path), it says
nothing. ``info`` stands for what works today.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from gpuiso.cdi.cache import Cache, SpecFile
from gpuiso.cdi.decode import join_path
from gpuiso.cdi.engines import Engines, every_engine_reads, no_engines
from gpuiso.cdi.names import split_kind
from gpuiso.cdi.rules import Path
from gpuiso.cdi.spec import ContainerEdits, DeviceNode, Hook, Spec
from gpuiso.cdi.version import parse_version
from gpuiso.errors import Unknown
from gpuiso.host.protocol import Host, Node

__all__ = ["RULES", "LintWarning", "Severity", "lint_cache", "lint_file", "lint_spec"]

Severity = Literal["error", "warning", "info"]

RULES: dict[str, Severity] = {
    "CDI-CONFLICT": "error",
    "CDI-HOOK-MISSING": "warning",
    "CDI-HOOK-RELATIVE": "warning",
    "CDI-HOOK-TIMEOUT": "warning",
    "CDI-MOUNT-MISSING": "warning",
    "CDI-NAME-LENGTH": "info",
    "CDI-NODE-MISSING": "warning",
    "CDI-NODE-STALE": "warning",
    "CDI-NODE-UNTYPED": "info",
    "CDI-NODE-WILDCARD": "warning",
    "CDI-PATH-RELATIVE": "warning",
    "CDI-SHADOWED": "warning",
    "CDI-UNREADABLE": "warning",
    "CDI-VERSION-TOO-NEW": "warning",
}

# runtime-spec config.md: startContainer's path is one of the container, every other hook's one of the host.
_CONTAINER_HOOKS = ("startContainer",)


@dataclass(frozen=True, slots=True)
class LintWarning:
    """One finding. ``where`` is a path such as ``devices[0].containerEdits.mounts[3].hostPath``, or empty."""

    rule: str
    file: str
    where: str
    message: str

    @property
    def severity(self) -> Severity:
        return RULES[self.rule]


def lint_cache(host: Host, cache: Cache, engines: Engines = no_engines) -> tuple[LintWarning, ...]:
    """Warnings about every usable file of ``cache`` and about what they do to one another.

    ``engines`` are those of the host that read these files.
    """
    found = [warning for file in cache.files for warning in lint_file(host, file, engines)]
    for name, paths in cache.conflicts.items():
        message = f"{name} is defined by {' and '.join(paths)}; no container can have it"
        found.append(LintWarning("CDI-CONFLICT", paths[-1], "", message))
    for name, paths in cache.shadowed.items():
        if name in cache.devices:
            winner = cache.devices[name].file.path
            found += [
                LintWarning("CDI-SHADOWED", path, "", f"{name} is not used from here: {winner} replaces it")
                for path in paths
            ]
    return tuple(found)


def lint_file(host: Host, file: SpecFile, engines: Engines = no_engines) -> tuple[LintWarning, ...]:
    """Warnings about one file, its permissions included."""
    found = [LintWarning(rule, file.path, "", message) for rule, message in _readable(host, file.path)]
    found += [
        LintWarning("CDI-VERSION-TOO-NEW", file.path, "cdiVersion", message) for message in _too_new(file.spec, engines)
    ]
    found += [
        LintWarning(rule, file.path, join_path(path), message) for rule, path, message in lint_spec(host, file.spec)
    ]
    return tuple(found)


_Found = tuple[str, Path, str]


def lint_spec(host: Host, spec: Spec) -> Iterator[_Found]:
    """Warnings about a spec wherever it is kept: (rule, path of the value, message)."""
    vendor, device_class = split_kind(spec.kind)
    if len(vendor) > 253 or len(device_class) > 63:
        yield "CDI-NAME-LENGTH", ("kind",), "SPEC.md allows 253 characters before the slash and 63 after it"
    yield from _edits(host, spec.container_edits, ("containerEdits",))
    for index, device in enumerate(spec.devices):
        yield from _edits(host, device.container_edits, ("devices", index, "containerEdits"))


def _edits(host: Host, edits: ContainerEdits, path: Path) -> Iterator[_Found]:
    for index, node in enumerate(edits.device_nodes):
        yield from _node(host, node, (*path, "deviceNodes", index))
    for index, mount in enumerate(edits.mounts):
        here = (*path, "mounts", index)
        for key, value in (("hostPath", mount.host_path), ("containerPath", mount.container_path)):
            if not value.startswith("/"):
                yield "CDI-PATH-RELATIVE", (*here, key), f"{value!r} is not an absolute path"
        if mount.host_path.startswith("/") and _exists(host, mount.host_path) is False:
            yield "CDI-MOUNT-MISSING", (*here, "hostPath"), f"{mount.host_path} does not exist here"
    for index, hook in enumerate(edits.hooks):
        yield from _hook(host, hook, (*path, "hooks", index))


def _node(host: Host, node: DeviceNode, path: Path) -> Iterator[_Found]:
    source = node.host_path or node.path
    for key, value in (("path", node.path), ("hostPath", node.host_path)):
        if value and not value.startswith("/"):
            yield "CDI-PATH-RELATIVE", (*path, key), f"{value!r} is not an absolute path"
    if node.major < 0 or node.minor < 0:
        message = f"{node.path}: a negative number allows every device of its kind in the device cgroup"
        yield "CDI-NODE-WILDCARD", path, message
        return
    if not source.startswith("/"):
        return
    try:
        actual = host.lstat(source)
    except Unknown:
        return
    if actual is None:
        yield "CDI-NODE-MISSING", path, f"{source} does not exist here"
    else:
        yield from _compare(node, actual, source, path)


def _compare(node: DeviceNode, actual: Node, source: str, path: Path) -> Iterator[_Found]:
    if actual.type not in ("b", "c", "p"):
        yield "CDI-NODE-MISSING", path, f"{source} is not a device node here"
    elif node.type and node.type != actual.type and not (node.type == "u" and actual.type == "c"):
        yield "CDI-NODE-STALE", path, f"{source} is of type {actual.type} here, the spec says {node.type}"
    elif node.major and (node.major, node.minor) != (actual.major, actual.minor):
        message = (
            f"{source} is {actual.major}:{actual.minor} here, the spec says {node.major}:{node.minor}; "
            "a container gets the node of another driver"
        )
        yield "CDI-NODE-STALE", path, message
    elif node.major and not node.type:
        message = f"{source}: without a type, the node must exist when a container starts, whatever the numbers"
        yield "CDI-NODE-UNTYPED", path, message


def _hook(host: Host, hook: Hook, path: Path) -> Iterator[_Found]:
    if hook.timeout is not None and hook.timeout <= 0:
        message = f"timeout {hook.timeout}: runtime-spec asks for more than 0 seconds"
        yield "CDI-HOOK-TIMEOUT", (*path, "timeout"), message
    if not hook.path.startswith("/"):
        message = f"{hook.path!r}: runtime-spec asks for an absolute path"
        yield "CDI-HOOK-RELATIVE", (*path, "path"), message
        return
    if hook.hook_name in _CONTAINER_HOOKS:
        return
    try:
        actual = host.stat(hook.path)
    except Unknown:
        return
    if actual is None or actual.type != "f" or not actual.mode & 0o111:
        message = f"{hook.path} is no program here; every container that asks for the device fails to start"
        yield "CDI-HOOK-MISSING", (*path, "path"), message


def _too_new(spec: Spec, engines: Engines) -> Iterator[str]:
    version = parse_version(spec.version)
    if version is None or every_engine_reads(version):
        return
    for engine in engines():
        newest = parse_version(engine.reads) if engine.reads is not None else None
        if newest is not None and version > newest:
            yield (
                f"{engine.name} {engine.release} reads CDI up to {engine.reads} and refuses this file, "
                f"which says {spec.version}"
            )


def _exists(host: Host, path: str) -> bool | None:
    try:
        return host.lstat(path) is not None
    except Unknown:
        return None


def _readable(host: Host, path: str) -> Iterator[tuple[str, str]]:
    """Rootless engines read specs as an ordinary user."""
    for place, bits, what in ((posixpath.dirname(path), 0o005, "enter and list"), (path, 0o004, "read")):
        try:
            node = host.stat(place) if place else None
        except Unknown:
            continue
        if node is not None and node.mode & bits != bits:
            message = f"{place} has mode {node.mode:04o}: an engine of an ordinary user cannot {what} it"
            yield "CDI-UNREADABLE", message
