# SPDX-License-Identifier: Apache-2.0
"""What gpuiso may ask a machine: the seam between facts and everything that judges them.

A :class:`Host` is the running machine (:class:`gpuiso.host.live.LiveHost`) or a record of one
(:class:`gpuiso.host.recorded.RecordedHost`). Paths are absolute and as the host itself sees them; the view of
another process is reached through ``/proc/PID/root/...``, where nothing below that prefix can lead out of it.

Every question has three kinds of answer: a value, ``None`` for "does not exist", and the exception
:class:`gpuiso.errors.Unknown` for "cannot be known here" (not recorded, not permitted, timed out). A check lets
``Unknown`` pass through: the engine then lists it as not examined instead of drawing a conclusion from it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

__all__ = ["BpfMap", "CgroupMode", "CommandResult", "DeviceProgram", "Host", "Node", "NodeType"]

NodeType = Literal["b", "c", "d", "f", "l", "p", "s"]
CgroupMode = Literal["unified", "hybrid", "legacy"]


@dataclass(frozen=True, slots=True)
class Node:
    """A file system entry, as lstat(2) or stat(2) gave it.

    ``mode`` holds the permission bits alone (0o0000 to 0o7777). ``major`` and ``minor`` are set for ``c`` and
    ``b``, ``target`` for ``l``. Sizes are bytes, ``ctime`` is seconds since the epoch; both None if not known.
    ``mount`` is the id of the mount that a device node in a live process's view lies on, ``nodev`` whether it has
    that flag; None elsewhere.
    """

    path: str
    type: NodeType
    mode: int
    uid: int = 0
    gid: int = 0
    major: int | None = None
    minor: int | None = None
    target: str | None = None
    size: int | None = None
    ctime: float | None = None
    mount: int | None = field(default=None, compare=False)
    nodev: bool | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class DeviceProgram:
    """One BPF_PROG_TYPE_CGROUP_DEVICE program attached to a cgroup (BPF_PROG_QUERY, BPF_OBJ_GET_INFO_BY_FD).

    ``insns`` is the translated program, 8 bytes an instruction, or None where the kernel does not show it.
    """

    id: int
    name: str
    tag: str
    attach_flags: int
    insns: bytes | None


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What a program printed. ``exit`` is None if it was abandoned at its deadline."""

    argv: tuple[str, ...]
    exit: int | None
    stdout: str
    stderr: str
    seconds: float
    timed_out: bool


class BpfMap(Protocol):
    """A map: sizes in bytes, ``type`` a number of enum bpf_map_type."""

    @property
    def type(self) -> int: ...
    @property
    def key_size(self) -> int: ...
    @property
    def value_size(self) -> int: ...
    def lookup(self, key: bytes) -> bytes | None: ...


class Host(Protocol):
    """The questions. All of them may raise :class:`gpuiso.errors.Unknown`."""

    @property
    def live(self) -> bool:
        """Whether this is the running machine, so that probes and fixes make sense."""

    @property
    def name(self) -> str:
        """What to call this host in a report: ``this host``, or the path of the record."""

    @property
    def kernel(self) -> str:
        """The kernel release, as in /proc/sys/kernel/osrelease."""

    @property
    def cgroup_mode(self) -> CgroupMode:
        """``unified``: cgroup v2 alone; ``hybrid``: v1 controllers beside a v2 tree; ``legacy``: v1 alone."""

    @property
    def systemd(self) -> bool:
        """Whether systemd is the service manager (sd_booted(3))."""

    def read(self, path: str) -> bytes | None:
        """The bytes of a regular file."""

    def text(self, path: str) -> str | None:
        """The same as text; bytes that are not UTF-8 become U+FFFD."""

    def listdir(self, path: str) -> tuple[str, ...] | None:
        """The names in a directory, sorted."""

    def lstat(self, path: str) -> Node | None:
        """The entry itself, links not followed."""

    def stat(self, path: str) -> Node | None:
        """What the path leads to."""

    def readlink(self, path: str) -> str | None:
        """The target of a symbolic link, None if the path does not exist or is no link."""

    def getxattr(self, path: str, name: str) -> bytes | None:
        """An extended attribute of what the path leads to; None if it has none of that name. Records hold none."""

    def pids(self) -> tuple[int, ...]:
        """Every process, ascending."""

    def device_programs(self, cgroup: str) -> tuple[DeviceProgram, ...] | None:
        """The device programs attached to one v2 cgroup (path below the v2 root, ``/`` for the root itself).

        None if that cgroup does not exist.
        """

    def bpf_map(self, map_id: int) -> BpfMap | None:
        """A map that a device program uses, None if it may not be read or was not recorded."""

    def kernel_function(self, distance: int) -> str | None:
        """The function at a distance from ``__bpf_call_base``, as a loaded program's CALL holds it, if known."""

    def probe(self, pid: int, node: str, access: str = "rw") -> str | None:
        """The errno name with which ``pid`` fails to access ``node`` (a path in its own view), None if it may.

        ``access`` is a set of ``r`` and ``w``. On a record, only what was probed is known.
        """

    def nvml(self) -> dict[str, Any] | None:
        """NVML's view in the form of a record's tools/nvml.json, None if there is no NVML library."""

    def kernel_log(self) -> str:
        """The kernel's ring buffer, one message a line, as dmesg(1) prints it."""

    def unit(self, name: str) -> dict[str, Any] | None:
        """D-Bus properties of a unit of the system manager as JSON values, None if there is no such unit."""

    def docker_info(self) -> dict[str, Any] | None:
        """Docker's ``info``, None if no daemon answers."""

    def docker_containers(self) -> dict[str, dict[str, Any]]:
        """Docker's ``inspect`` of every container, by id."""

    def command(self, argv: tuple[str, ...], *, timeout: float = 5.0) -> CommandResult | None:
        """Runs a program that only reads; None if it is not installed. A stuck program is abandoned."""
