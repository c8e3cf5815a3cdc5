# SPDX-License-Identifier: Apache-2.0
"""A host on which what was read of one process stays as it was.

Some fifty checks ask about the same dozen files of a process. Reading each once saves most of the time that an
examination takes, and no two checks see different states of a process that changes meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from gpuiso.errors import Unknown
from gpuiso.host.protocol import BpfMap, CgroupMode, CommandResult, DeviceProgram, Host, Node

__all__ = ["Snapshot"]

_T = TypeVar("_T")


class Snapshot:
    """``host``, with every answer about /proc/``pid`` remembered, Unknown as well. All else is passed on."""

    def __init__(self, host: Host, pid: int) -> None:
        self.host = host
        self._base = f"/proc/{pid}/"
        self._answers: dict[tuple[str, str], Any] = {}

    def _once(self, question: Callable[[str], _T], path: str) -> _T:
        if not path.startswith(self._base):
            return question(path)
        key = (question.__name__, path)
        if key not in self._answers:
            try:
                self._answers[key] = question(path)
            except Unknown as error:
                self._answers[key] = error
        answer = self._answers[key]
        if isinstance(answer, Unknown):
            raise answer
        return cast("_T", answer)

    def read(self, path: str) -> bytes | None:
        return self._once(self.host.read, path)

    def text(self, path: str) -> str | None:
        return self._once(self.host.text, path)

    def listdir(self, path: str) -> tuple[str, ...] | None:
        return self._once(self.host.listdir, path)

    def lstat(self, path: str) -> Node | None:
        return self._once(self.host.lstat, path)

    def stat(self, path: str) -> Node | None:
        return self._once(self.host.stat, path)

    def readlink(self, path: str) -> str | None:
        return self._once(self.host.readlink, path)

    def getxattr(self, path: str, name: str) -> bytes | None:
        return self.host.getxattr(path, name)

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

    def pids(self) -> tuple[int, ...]:
        return self.host.pids()

    def device_programs(self, cgroup: str) -> tuple[DeviceProgram, ...] | None:
        return self.host.device_programs(cgroup)

    def bpf_map(self, map_id: int) -> BpfMap | None:
        return self.host.bpf_map(map_id)

    def kernel_function(self, distance: int) -> str | None:
        return self.host.kernel_function(distance)

    def probe(self, pid: int, node: str, access: str = "rw") -> str | None:
        return self.host.probe(pid, node, access)

    def nvml(self) -> dict[str, Any] | None:
        return self.host.nvml()

    def kernel_log(self) -> str:
        return self.host.kernel_log()

    def unit(self, name: str) -> dict[str, Any] | None:
        return self.host.unit(name)

    def docker_info(self) -> dict[str, Any] | None:
        return self.host.docker_info()

    def docker_containers(self) -> dict[str, dict[str, Any]]:
        return self.host.docker_containers()

    def command(self, argv: tuple[str, ...], *, timeout: float = 5.0) -> CommandResult | None:
        return self.host.command(argv, timeout=timeout)
