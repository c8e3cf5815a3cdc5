# SPDX-License-Identifier: Apache-2.0
"""A host made of dictionaries, for what a live machine or a record cannot show on demand."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping
from typing import Any

from gpuiso.errors import Unknown
from gpuiso.host.protocol import BpfMap, CgroupMode, CommandResult, DeviceProgram, Node

__all__ = ["FakeHost", "node"]


def node(path: str, kind: Any = "f", **given: Any) -> Node:
    return Node(path=path, type=kind, mode=given.pop("mode", 0o755), **given)


class FakeHost:
    """Has the given nodes and file contents; asked for anything else, it does not know.

    Directories come into being above what they hold. ``unknown`` paths raise Unknown.
    """

    live = False
    name = "a test host"
    kernel = "6.12.1"
    cgroup_mode: CgroupMode = "unified"
    systemd = False

    def __init__(
        self,
        nodes: Iterable[Node] = (),
        files: Mapping[str, str | bytes] | None = None,
        *,
        commands: Mapping[tuple[str, ...], str] | None = None,
        nvml: Any = None,
        unknown: Iterable[str] = (),
    ) -> None:
        self.nodes = {entry.path: entry for entry in nodes}
        self.files = {path: text.encode() if isinstance(text, str) else text for path, text in (files or {}).items()}
        for path, data in self.files.items():
            self.nodes.setdefault(path, node(path, mode=0o644, size=len(data)))
        for path in list(self.nodes):
            while (path := posixpath.dirname(path)) not in self.nodes:
                self.nodes[path] = node(path, "d")
        self.commands = dict(commands or {})
        self.unknown = set(unknown)
        self._nvml = nvml

    def _resolved(self, path: str) -> str:
        for _ in range(40):
            parts = posixpath.normpath(path).split("/")[1:]
            for index in range(1, len(parts) + 1):
                prefix = "/" + "/".join(parts[:index])
                entry = self.nodes.get(prefix)
                if entry is not None and entry.target is not None:
                    rest = parts[index:]
                    path = posixpath.join(posixpath.dirname(prefix), entry.target, *rest)
                    break
            else:
                break
        return posixpath.normpath(path)

    def _check(self, path: str) -> None:
        if path in self.unknown:
            raise Unknown(path, "not recorded")

    def read(self, path: str) -> bytes | None:
        self._check(path)
        return self.files.get(self._resolved(path))

    def text(self, path: str) -> str | None:
        data = self.read(path)
        return None if data is None else data.decode()

    def listdir(self, path: str) -> tuple[str, ...] | None:
        self._check(path)
        place = self._resolved(path)
        if place not in self.nodes or self.nodes[place].type != "d":
            return None
        inside = place.rstrip("/") + "/"
        names = (entry.removeprefix(inside) for entry in self.nodes if entry.startswith(inside) and entry != inside)
        return tuple(sorted(name for name in names if name and "/" not in name))

    def lstat(self, path: str) -> Node | None:
        self._check(path)
        parent = self._resolved(posixpath.dirname(path))
        return self.nodes.get(posixpath.join(parent, posixpath.basename(path)))

    def stat(self, path: str) -> Node | None:
        self._check(path)
        return self.nodes.get(self._resolved(path))

    def readlink(self, path: str) -> str | None:
        entry = self.lstat(path)
        return None if entry is None else entry.target

    def getxattr(self, path: str, name: str) -> bytes | None:
        return None

    def bpf_map(self, map_id: int) -> BpfMap | None:
        return None

    def kernel_function(self, distance: int) -> str | None:
        return None

    def pids(self) -> tuple[int, ...]:
        return ()

    def device_programs(self, cgroup: str) -> tuple[DeviceProgram, ...] | None:
        raise Unknown(cgroup, "not recorded")

    def probe(self, pid: int, node: str, access: str = "rw") -> str | None:
        raise Unknown(node, "not recorded")

    def nvml(self) -> dict[str, Any] | None:
        if isinstance(self._nvml, Unknown):
            raise self._nvml
        answer: dict[str, Any] | None = self._nvml
        return answer

    def kernel_log(self) -> str:
        raise Unknown("kernel log", "not recorded")

    def unit(self, name: str) -> dict[str, Any] | None:
        raise Unknown(name, "not recorded")

    def docker_info(self) -> dict[str, Any] | None:
        raise Unknown("docker", "not recorded")

    def docker_containers(self) -> dict[str, dict[str, Any]]:
        raise Unknown("docker", "not recorded")

    def command(self, argv: tuple[str, ...], *, timeout: float = 5.0) -> CommandResult | None:
        if argv not in self.commands:
            raise Unknown(" ".join(argv), "not recorded")
        return CommandResult(argv, 0, self.commands[argv], "", 0.01, False)
