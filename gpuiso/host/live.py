# SPDX-License-Identifier: Apache-2.0
"""The running machine."""

from __future__ import annotations

import os
import re
import shutil
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from gpuiso.errors import NotSupported, Unknown
from gpuiso.host import files
from gpuiso.host.cgroup_mounts import cgroup_mounts, unified_tree
from gpuiso.host.child import Child
from gpuiso.host.nvml import NvmlChild
from gpuiso.host.protocol import BpfMap, CgroupMode, CommandResult, DeviceProgram, Node
from gpuiso.host.view import Views

if TYPE_CHECKING:
    from gpuiso.host.docker_engine import DockerEngine
    from gpuiso.host.systemd_bus import SystemdBus

__all__ = ["LiveHost"]

_PROCESS = re.compile(r"/proc/(\d+|self|thread-self)(/|$)")
_MAGIC = re.compile(r"/proc/\d+/(?:root|cwd|exe|fd/\d+)")
_PRIORITY = re.compile(r"^<\d+>", re.MULTILINE)

NVML_DEADLINE = 3.0  # seconds; nvmlInit takes 0.03 with persistence, up to 2 on a cold 8-GPU host


class LiveHost:
    """This machine, read at the moment of asking; files outside /proc/PID are read once and remembered, as are mounts.

    ``nvml_deadline`` is how many seconds NVML may take in all before it is given up.
    """

    live = True
    name = "this host"

    def __init__(self, *, nvml_deadline: float = NVML_DEADLINE) -> None:
        if not os.path.exists("/proc/self/mountinfo"):
            raise NotSupported("no /proc here", hint="gpuiso needs Linux with procfs mounted on /proc")
        self._nvml_deadline = nvml_deadline
        self._read: dict[str, bytes | None] = {}
        self._nvml: NvmlChild | None = None
        self._views = Views(self)
        self._programs: dict[str, tuple[DeviceProgram, ...] | None] = {}

    # Machine

    @cached_property
    def kernel(self) -> str:
        return os.uname().release

    @cached_property
    def systemd(self) -> bool:
        return os.path.isdir("/run/systemd/system")

    @cached_property
    def _cgroup_mounts(self) -> dict[str, str]:
        return cgroup_mounts(self)

    @cached_property
    def _unified_tree(self) -> tuple[str, str] | None:
        return unified_tree(self)

    @cached_property
    def cgroup_mode(self) -> CgroupMode:
        if "" not in self._cgroup_mounts:
            return "legacy"
        return "hybrid" if len(self._cgroup_mounts) > 1 else "unified"

    # Files

    def read(self, path: str) -> bytes | None:
        if _PROCESS.match(path) and path != "/proc/self/mountinfo":
            return self._views.ask(files.read_file, path)
        if path not in self._read:
            self._read[path] = files.read_file(path)
        return self._read[path]

    def text(self, path: str) -> str | None:
        data = self.read(path)
        return None if data is None else data.decode("utf-8", "replace")

    def listdir(self, path: str) -> tuple[str, ...] | None:
        return self._views.ask(files.list_directory, path)

    def lstat(self, path: str) -> Node | None:
        return self._views.ask(files.lstat_node, path)

    def stat(self, path: str) -> Node | None:
        return self._views.ask(files.stat_node, path)

    def readlink(self, path: str) -> str | None:
        if _MAGIC.fullmatch(path):
            return files.read_link(path)  # /proc tells of its own links without asking where they lead
        return self._views.ask(files.read_link, path)

    def getxattr(self, path: str, name: str) -> bytes | None:
        return self._views.ask(partial(files.get_xattr, name=name), path)

    def pids(self) -> tuple[int, ...]:
        return tuple(sorted(int(name) for name in os.listdir("/proc") if name.isdigit()))

    # Cgroups and access

    def device_programs(self, cgroup: str) -> tuple[DeviceProgram, ...] | None:
        from gpuiso.host.device_programs import query_in_tree

        if self._unified_tree is None:
            raise Unknown(f"device programs of {cgroup}", "no cgroup2 tree is mounted here")
        if cgroup not in self._programs:
            self._programs[cgroup] = query_in_tree(*self._unified_tree, cgroup)
        return self._programs[cgroup]

    def bpf_map(self, map_id: int) -> BpfMap | None:
        from gpuiso.host.bpf_maps import open_map

        return open_map(map_id)

    def kernel_function(self, distance: int) -> str | None:
        from gpuiso.host.bpf_maps import kernel_function

        return kernel_function(distance)

    def probe(self, pid: int, node: str, access: str = "rw") -> str | None:
        from gpuiso.host.probe import probe_access

        return probe_access(self, pid, (node,), access)[0]

    # Tools

    def prefetch(self) -> None:
        """Starts what takes long (NVML), so that it runs while other facts are read."""
        if self._nvml is None and self._nvidia_driver_present:
            self._nvml = NvmlChild()

    @cached_property
    def _nvidia_driver_present(self) -> bool:
        return any(os.path.exists(path) for path in ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg"))

    def nvml(self) -> dict[str, Any] | None:
        self.prefetch()
        return None if self._nvml is None else self._nvml.answer(self._nvml_deadline)

    def kernel_log(self) -> str:
        from gpuiso.kernel.syslog import klogctl_read_all

        try:
            data = klogctl_read_all()
        except PermissionError as error:
            raise Unknown("kernel log", "not permitted to read it (CAP_SYSLOG)") from error
        except OSError as error:
            raise Unknown("kernel log", str(error)) from error
        return _PRIORITY.sub("", data.decode("utf-8", "replace"))

    def unit(self, name: str) -> dict[str, Any] | None:
        if not self.systemd:
            raise Unknown(f"unit {name}", "systemd is not the service manager here")
        return self._systemd_bus.unit(name)

    @cached_property
    def _systemd_bus(self) -> SystemdBus:
        from gpuiso.host.systemd_bus import SystemdBus

        return SystemdBus()

    def docker_info(self) -> dict[str, Any] | None:
        return self._docker.info()

    def docker_containers(self) -> dict[str, dict[str, Any]]:
        return self._docker.containers()

    @cached_property
    def _docker(self) -> DockerEngine:
        from gpuiso.host.docker_engine import DockerEngine

        return DockerEngine(self.unit)

    def command(self, argv: tuple[str, ...], *, timeout: float = 5.0) -> CommandResult | None:
        program = shutil.which(argv[0])
        if program is None:
            return None
        return Child((program, *argv[1:])).result(timeout)
