# SPDX-License-Identifier: Apache-2.0
"""Whether a process may access a node, found by trying in its place.

A child is made inside the process's cgroup (clone3 with CLONE_INTO_CGROUP), enters its mount namespace and root, takes
the user and groups that count for its files (fsuid, fsgid), its user namespace and capabilities, and asks
faccessat2(2), which meets the same gates as open(2) without opening anything. Two gates of open(2) are not met by it:
``nodev`` (read from the mount instead) and the driver (ENXIO). The process's LSM context, Landlock rules and seccomp
filter are not taken on.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from gpuiso.errors import NotFound, Unknown
from gpuiso.host import process
from gpuiso.host.cgroup_mounts import cgroup_mount
from gpuiso.host.protocol import Host
from gpuiso.kernel.access import AT_EACCESS, AT_FDCWD, faccessat2
from gpuiso.kernel.capability import (
    CAP_DAC_OVERRIDE,
    CAP_DAC_READ_SEARCH,
    CAP_SYS_ADMIN,
    capset,
    prctl_set_keepcaps,
)
from gpuiso.kernel.clone3 import clone3
from gpuiso.kernel.ns import CLONE_NEWNS, CLONE_NEWUSER, setns

__all__ = ["probe_access"]

DEADLINE = 2.0  # seconds for all nodes; an access takes microseconds

_COUNTING = 1 << CAP_DAC_OVERRIDE | 1 << CAP_DAC_READ_SEARCH  # what faccessat2(2) asks for
_MODES = {"r": os.R_OK, "w": os.W_OK}


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the child goes: descriptors of the process's namespaces, root and cgroups, and its credentials.

    ``user`` is None where the process is in this one's user namespace.
    """

    mnt: int
    root: int
    unified: int | None
    v1_procs: int | None
    user: int | None
    who: process.Status
    caps: int


def probe_access(host: Host, pid: int, nodes: Sequence[str], access: str = "rw") -> tuple[str | None, ...]:
    """For each path in ``pid``'s own view: None if it may access it, else the errno's name.

    :raises NotFound: no such process, or it ended meanwhile.
    :raises Unknown: the caller may not enter its namespaces and cgroup (root is needed).
    """
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        raise NotFound(f"no process {pid} on {host.name}") from None
    with ExitStack() as opened:
        opened.callback(os.close, pidfd)  # held so that the number cannot be given to another process meanwhile
        place = _place(host, pid, opened)
        return _ask(place, nodes, access, pid)


def _place(host: Host, pid: int, opened: ExitStack) -> _Place:
    def take(path: str, flags: int) -> int:
        fd = os.open(path, flags | os.O_CLOEXEC)
        opened.callback(os.close, fd)
        return fd

    try:
        who = process.status(host, pid)
        places = process.cgroups(host, pid)
        unified = cgroup_mount(host, "") if "" in places else None
        devices = cgroup_mount(host, "devices") if "devices" in places else None
        same_user = os.readlink(f"/proc/{pid}/ns/user") == os.readlink("/proc/self/ns/user")
        lacking = who.cap_eff & ~process.status(host, os.getpid()).cap_eff & _COUNTING
        if same_user and lacking:
            raise Unknown(f"access of pid {pid}", "it has capabilities over files that this process lacks")
        return _Place(
            mnt=take(f"/proc/{pid}/ns/mnt", os.O_RDONLY),
            root=take(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY),
            unified=take(f"{unified}{places['']}", os.O_RDONLY | os.O_DIRECTORY) if unified else None,
            v1_procs=take(f"{devices}{places['devices']}/cgroup.procs", os.O_WRONLY) if devices else None,
            # In another user namespace capabilities count for those files alone whose ids it maps.
            user=None if same_user else take(f"/proc/{pid}/ns/user", os.O_RDONLY),
            who=who,
            caps=who.cap_eff & _COUNTING,
        )
    except FileNotFoundError as error:
        raise NotFound(f"process {pid} ended, or its cgroup did") from error
    except PermissionError as error:
        raise Unknown(f"access of pid {pid}", f"probing it needs root with all its capabilities: {error}") from error


def _ask(place: _Place, nodes: Sequence[str], access: str, pid: int) -> tuple[str | None, ...]:
    readable, writable = os.pipe2(os.O_CLOEXEC)
    try:
        child, pidfd = clone3(cgroup_fd=place.unified)
    except OSError as error:
        os.close(readable)
        os.close(writable)
        raise Unknown(f"access of pid {pid}", f"no child can be made in its cgroup: {error}") from error
    if child == 0:
        _child(writable, place, nodes, access)
    os.close(writable)
    os.close(pidfd)
    try:
        data = _read_until(readable, time.monotonic() + DEADLINE)
    finally:
        os.close(readable)
    if data is None:
        os.kill(child, signal.SIGKILL)  # in a frozen cgroup of v1 even that waits for the thaw: do not wait for it
        raise Unknown(f"access of pid {pid}", f"no answer within {DEADLINE:g} s: its cgroup may be frozen")
    os.waitpid(child, 0)
    head, *answers = data.decode().split("\n")
    if head != "ok" or len(answers) != len(nodes):
        raise Unknown(f"access of pid {pid}", f"the probe could not take its place: {head or 'no answer'}")
    return tuple(answer or None for answer in answers)


def _read_until(readable: int, limit: float) -> bytes | None:
    """All that is written until the end of the pipe, None if it does not end in time."""
    data = b""
    while select.select([readable], [], [], max(0.0, limit - time.monotonic()))[0]:
        chunk = os.read(readable, 1 << 16)
        if not chunk:
            return data
        data += chunk
    return None


def _child(writable: int, place: _Place, nodes: Sequence[str], access: str) -> None:
    """Runs in the child; never returns."""
    try:
        try:
            _enter(place)
        except OSError as error:
            answer = str(error)
        else:
            answer = "\n".join(["ok", *(_access(node, access) for node in nodes)])
        os.write(writable, answer.encode())
    finally:
        os._exit(0)


def _enter(place: _Place) -> None:
    if place.v1_procs is not None:
        os.write(place.v1_procs, b"0")
    setns(place.mnt, CLONE_NEWNS)
    os.fchdir(place.root)
    os.chroot(".")
    os.setgroups(sorted(place.who.groups))
    os.setresgid(place.who.fsgid, place.who.fsgid, place.who.fsgid)
    prctl_set_keepcaps(keep=True)
    os.setresuid(place.who.fsuid, place.who.fsuid, place.who.fsuid)
    if place.user is not None:
        capset(1 << CAP_SYS_ADMIN, 1 << CAP_SYS_ADMIN)  # setns(2) asks for it, and gives all of the new namespace
        setns(place.user, CLONE_NEWUSER)
    capset(place.caps, place.caps)


def _access(node: str, access: str) -> str:
    """The errno's name, empty if there is none."""
    mode = sum(_MODES[letter] for letter in access if letter in _MODES)
    try:
        faccessat2(AT_FDCWD, node, mode, AT_EACCESS)
        return "EACCES" if os.statvfs(node).f_flag & os.ST_NODEV else ""
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error.errno))
