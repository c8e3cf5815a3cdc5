# SPDX-License-Identifier: Apache-2.0
"""A host that remembers every answer it gives: what :mod:`gpuiso.host.record` writes down.

A doctor that examines a host through a recorder leaves in it what its findings rest on, so that a record written
from it gives the same findings.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from gpuiso.errors import Unknown
from gpuiso.host.protocol import BpfMap, CgroupMode, CommandResult, DeviceProgram, Host, Node

__all__ = ["Recorder"]

_T = TypeVar("_T")
_MAX_LINKS = 40  # as path_resolution(7)
_MAX_LISTED = 1000  # names of a directory that is remembered as a whole


class Recorder:
    """Asks ``host`` and remembers. The attributes hold the answers by question; Unknown is not remembered."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.files: dict[str, bytes] = {}
        self.nodes: dict[str, Node] = {}
        self.listings: dict[str, tuple[str, ...]] = {}
        self.absent: set[str] = set()
        self.programs: dict[str, tuple[DeviceProgram, ...] | None] = {}
        self.probes: dict[int, dict[str, dict[str, str]]] = {}
        self.units: dict[str, dict[str, Any] | None] = {}
        self.commands: dict[tuple[str, ...], CommandResult | None] = {}
        self.tools: dict[str, Any] = {}

    # Machine

    @property
    def live(self) -> bool:
        return self.host.live

    @property
    def name(self) -> str:
        return self.host.name

    @property
    def kernel(self) -> str:
        return self.host.kernel

    @property
    def cgroup_mode(self) -> CgroupMode:
        return self.host.cgroup_mode

    @property
    def systemd(self) -> bool:
        return self.host.systemd

    # Files

    def read(self, path: str) -> bytes | None:
        data = self.host.read(path)
        if data is not None:
            self.files[path] = data
        elif path not in self.absent:
            self.stat(path)  # None: nothing there, or something that has no bytes
        return data

    def text(self, path: str) -> str | None:
        data = self.read(path)
        return None if data is None else data.decode("utf-8", "replace")

    def listdir(self, path: str) -> tuple[str, ...] | None:
        names = self.host.listdir(path)
        if names is None:
            self.stat(path)
        elif path not in self.listings and len(names) <= _MAX_LISTED:
            self.listings[path] = names
        return names

    def lstat(self, path: str) -> Node | None:
        node = self.host.lstat(path)
        if node is None:
            self.absent.add(path)
        else:
            self.nodes[path] = node
        return node

    def stat(self, path: str) -> Node | None:
        node = self.host.stat(path)
        self._chain(path, node)
        return node

    def readlink(self, path: str) -> str | None:
        target = self.host.readlink(path)
        if target is None:
            self.lstat(path)
        else:
            # lstat(2) of /proc's own links may not be permitted where readlink(2) is.
            self.nodes[path] = Node(path, "l", 0o777, target=target)
        return target

    def getxattr(self, path: str, name: str) -> bytes | None:
        return self.host.getxattr(path, name)

    def pids(self) -> tuple[int, ...]:
        return self.host.pids()

    def _chain(self, path: str, leads_to: Node | None) -> None:
        """Remembers each link from ``path`` on, and the entry at its end."""
        root = (
            "/".join(path.split("/", 4)[:4]) if path.startswith("/proc/") and path.split("/")[3:4] == ["root"] else ""
        )
        for _ in range(_MAX_LINKS):
            node = self.lstat(path)
            if node is None or node.type != "l" or node.target is None:
                break
            directory = "/" if node.target.startswith("/") else posixpath.dirname(path.removeprefix(root))
            path = root + posixpath.normpath(posixpath.join(directory, node.target))
        if leads_to is not None and path not in self.nodes:
            self.nodes[path] = replace(leads_to, path=path)

    # Cgroups and access

    def device_programs(self, cgroup: str) -> tuple[DeviceProgram, ...] | None:
        try:
            programs = self.host.device_programs(cgroup)
        except Unknown as error:
            if error.why.startswith("not permitted"):
                self.programs[cgroup] = None
            raise
        if programs is not None:
            self.programs[cgroup] = programs
        return programs

    def bpf_map(self, map_id: int) -> BpfMap | None:
        return self.host.bpf_map(map_id)

    def kernel_function(self, distance: int) -> str | None:
        return self.host.kernel_function(distance)

    def probe(self, pid: int, node: str, access: str = "rw") -> str | None:
        failure = self.host.probe(pid, node, access)
        probed = self.probes.setdefault(pid, {})
        if failure is not None:
            probed.setdefault(node, {})[access] = failure
        return failure

    # Tools

    def nvml(self) -> dict[str, Any] | None:
        try:
            return self._tool("nvml", self.host.nvml)
        except Unknown as error:
            if error.why != "not recorded":
                self.tools["nvml"] = {"error": error.why}  # that the driver hangs or refuses is a fact, too
            raise

    def kernel_log(self) -> str:
        return self._tool("kernel_log", self.host.kernel_log)

    def unit(self, name: str) -> dict[str, Any] | None:
        self.units[name] = self.host.unit(name)
        return self.units[name]

    def docker_info(self) -> dict[str, Any] | None:
        return self._tool("docker_info", self.host.docker_info)

    def docker_containers(self) -> dict[str, dict[str, Any]]:
        return self._tool("docker_containers", self.host.docker_containers)

    def command(self, argv: tuple[str, ...], *, timeout: float = 5.0) -> CommandResult | None:
        self.commands[argv] = self.host.command(argv, timeout=timeout)
        return self.commands[argv]

    def _tool(self, name: str, question: Callable[[], _T]) -> _T:
        answer = question()
        self.tools[name] = answer
        return answer
