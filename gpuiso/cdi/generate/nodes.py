# SPDX-License-Identifier: Apache-2.0
"""Device nodes as a CDI spec writes them."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from gpuiso.cdi.generate.driver import depth_and_path
from gpuiso.cdi.spec import ContainerEdits, DeviceNode, Hook
from gpuiso.errors import Unknown
from gpuiso.gpu.model import DeviceNode as GpuNode
from gpuiso.host.protocol import Host, Node

__all__ = ["NodeWriter", "merge_edits"]

_WORLD_READ_WRITE = 0o006
_DEFAULT_MODE = 0o666


@dataclass(slots=True)
class NodeWriter:
    """Turns nodes of an inventory, and nodes found in /dev, into those of a spec. Notes what is wrong with
    them.
    """

    host: Host
    dev_root: str = "/"
    additional_gids: bool = True
    numbers: bool = True
    messages: list[str] = field(default_factory=list)

    def edits(self, nodes: Iterable[GpuNode], hooks: tuple[Hook, ...] = ()) -> ContainerEdits:
        """Edits that bring ``nodes``; those that cannot be written are left out and named in ``messages``."""
        return self._edits([self.registered(node) for node in nodes], hooks)

    def edits_of_paths(self, paths: Iterable[str]) -> ContainerEdits:
        """Edits that bring the character devices at ``paths``; what is no device there is left out."""
        return self._edits([self.existing(path) for path in paths], ())

    def registered(self, node: GpuNode) -> DeviceNode | None:
        """``node`` with the numbers that its driver registered, whatever /dev says."""
        host_path, actual = self._actual(node.path, node.actual)
        if node.major is None or node.minor is None:
            if actual is not None and actual.type == "c":
                return self._node(node.path, host_path, actual, actual.major or 0, actual.minor or 0)
            if node.required:
                self._say(f"{host_path} does not exist and its driver is not loaded; containers go without it")
            return None
        wanted = f"{node.major}:{node.minor}"
        if actual is None:
            self._say(f"{host_path} does not exist yet; written as {wanted}, which its driver registered")
        elif actual.type != "c" or (actual.major, actual.minor) != (node.major, node.minor):
            found = f"is {actual.major}:{actual.minor}" if actual.type == "c" else "is no character device"
            self._say(f"{host_path} {found}; written as {wanted}, which its driver registered")
            actual = None
        return self._node(node.path, host_path, actual, node.major, node.minor)

    def existing(self, path: str) -> DeviceNode | None:
        """The character device at ``path``, None if there is none."""
        host_path, actual = self._actual(path, None)
        if actual is None or actual.type != "c":
            return None
        return self._node(path, host_path, actual, actual.major or 0, actual.minor or 0)

    def names(self, directory: str) -> tuple[str, ...]:
        """The names in a directory below ``dev_root``."""
        try:
            return self.host.listdir(self._host_path(directory)) or ()
        except Unknown:
            return ()

    def _host_path(self, path: str) -> str:
        return path if self.dev_root == "/" else posixpath.join(self.dev_root, path.lstrip("/"))

    def _actual(self, path: str, known: Node | None) -> tuple[str, Node | None]:
        host_path = self._host_path(path)
        if known is not None and host_path == path:
            return host_path, known
        try:
            return host_path, self.host.stat(host_path)
        except Unknown:
            return host_path, None

    def _node(self, path: str, host_path: str, actual: Node | None, major: int, minor: int) -> DeviceNode:
        return DeviceNode(
            path=path,
            host_path="" if host_path == path else host_path,
            type="c",
            major=major,
            minor=minor,
            file_mode=_DEFAULT_MODE if actual is None else actual.mode,
            permissions="rwm",
            gid=(actual.gid or None) if actual is not None else None,
        )

    def _edits(self, found: list[DeviceNode | None], hooks: tuple[Hook, ...]) -> ContainerEdits:
        unique = {node.path: node for node in found if node is not None}
        nodes = tuple(sorted(unique.values(), key=lambda node: depth_and_path(node.path)))
        gids = sorted({node.gid for node in nodes if node.gid is not None and _needs_group(node)})
        if not self.numbers:
            nodes = tuple(replace(node, type="", major=0, minor=0, file_mode=None) for node in nodes)
        return ContainerEdits(
            device_nodes=nodes, hooks=hooks, additional_gids=tuple(gids) if self.additional_gids else ()
        )

    def _say(self, message: str) -> None:
        if message not in self.messages:
            self.messages.append(message)


def _needs_group(node: DeviceNode) -> bool:
    return node.file_mode is not None and node.file_mode & _WORLD_READ_WRITE != _WORLD_READ_WRITE


def merge_edits(edits: Iterable[ContainerEdits]) -> ContainerEdits:
    """The union of several devices' edits, each node, hook and group once."""
    total = sum(edits, ContainerEdits())
    unique = {node.path: node for node in total.device_nodes}
    return ContainerEdits(
        env=tuple(dict.fromkeys(total.env)),
        device_nodes=tuple(sorted(unique.values(), key=lambda node: depth_and_path(node.path))),
        hooks=tuple(dict.fromkeys(total.hooks)),
        mounts=tuple(dict.fromkeys(total.mounts)),
        additional_gids=tuple(sorted(set(total.additional_gids))),
    )
