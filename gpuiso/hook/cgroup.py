# SPDX-License-Identifier: Apache-2.0
"""The container's cgroup, and the device programs in it."""

from __future__ import annotations

import errno
import os

from gpuiso.hook.errors import HookError
from gpuiso.hook.undo import Undo
from gpuiso.kernel import bpf_attach as bpf

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    _T = TypeVar("_T")

__all__ = ["ContainerCgroup", "decided_by_v1", "find_cgroup", "is_root", "require_root"]

_NAME = "gpuiso_hook"
_NEEDS_ROOT = (
    "device rules and gpu.max need root of the host; a rootless engine, or one in a user namespace, cannot hold them"
)


class ContainerCgroup:
    """``path`` is below the root of the v2 tree, ``fd`` its directory."""

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self.fd = fd

    def programs(self) -> tuple[int, ...]:
        """The ids of what is attached here."""
        return _permitted(lambda: bpf.prog_query(self.fd).ids)

    def restrict(self, program: bytes, undo: Undo) -> None:
        """Attach a program beside those that are there: it can only take away.

        Nobody but us detaches it: neither systemd nor a runtime that replaces its own program.
        """
        self._attach(_load(program), undo)

    def replace(self, program: bytes, old: tuple[int, ...], undo: Undo) -> None:
        """Put a program in the place of those of ``old`` that are still attached."""
        new = _load(program)
        present = self.programs()
        going = [_descriptor(one) for one in old if one in present]
        if going and self._replaced(new, going[0]):
            first = going.pop(0)
            undo.on_failure(lambda: self._put_back(first, new))
        else:
            self._attach(new, undo)
        for fd in going:
            self._detach(fd, undo)

    def _attach(self, fd: int, undo: Undo) -> None:
        _permitted(lambda: bpf.prog_attach(self.fd, fd))
        undo.on_failure(lambda: bpf.prog_detach(self.fd, fd))

    def _detach(self, fd: int, undo: Undo) -> None:
        bpf.prog_detach(self.fd, fd)
        undo.on_failure(lambda: bpf.prog_attach(self.fd, fd))

    def _put_back(self, old: int, new: int) -> None:
        if not self._replaced(old, new):
            bpf.prog_attach(self.fd, old)
            bpf.prog_detach(self.fd, new)

    def _replaced(self, new: int, old: int) -> bool:
        """Whether ``new`` took the place of ``old`` in one step; kernels before v5.6 cannot."""
        try:
            bpf.prog_attach(self.fd, new, flags=bpf.BPF_F_ALLOW_MULTI | bpf.BPF_F_REPLACE, replace_fd=old)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            return False
        return True


def is_root() -> bool:
    """Whether the hook runs as root of the host, not as an ordinary user or in a user namespace."""
    with open("/proc/self/uid_map") as file:
        mapping = file.read().split()
    return mapping[:2] == ["0", "0"] and os.geteuid() == 0


def require_root() -> None:
    """:raises HookError: the hook runs in a user namespace, or as an ordinary user."""
    if not is_root():
        raise HookError(_NEEDS_ROOT)


def find_cgroup(pid: int) -> ContainerCgroup:
    """The cgroup that ``pid`` has to itself.

    :raises HookError: it shares one with others, device access is decided by cgroup v1, or there is no such process.
    """
    if pid <= 0:
        raise HookError("the state has no pid, so the container's cgroup is not known")
    path = _v2_path(f"/proc/{pid}/cgroup", f"the container's process {pid}")
    if path.startswith("/..") or path.strip("/") == "":
        raise HookError(f"the container has no cgroup of its own ({path}); rules for it would be rules for others")
    directory = _mount_point() + path
    try:
        with open(f"{directory}/cgroup.procs") as file:
            members = {int(line) for line in file}
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise HookError(f"the container's cgroup {directory}: {error.strerror}") from None
    if members - {pid, *_descendants(pid)}:
        os.close(fd)
        raise HookError(f"the container shares the cgroup {path} with other processes; it needs one of its own")
    return ContainerCgroup(path, fd)


def _descendants(pid: int) -> set[int]:
    found: set[int] = set()
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            children = [int(word) for word in file.read().split()]
    except OSError:
        return found
    for child in children:
        found |= {child, *_descendants(child)}
    return found


def _v2_path(file: str, whose: str) -> str:
    try:
        with open(file) as lines:
            entries = [line.rstrip("\n").split(":", 2) for line in lines]
    except OSError as error:
        raise HookError(f"{whose}: {error.strerror}") from None
    for entry in entries:
        if entry[:2] == ["0", ""]:
            return entry[2]
    raise HookError(f"{whose} is in no cgroup of v2")


def decided_by_v1() -> bool:
    """Whether cgroup v1 decides about devices on this host."""
    return any(_has_devices(line) for line in _cgroup_mounts())


def _mount_point() -> str:
    """Where the whole v2 tree is mounted."""
    found = None
    for line in _cgroup_mounts():
        fields = line.split(" ")
        if _has_devices(line):
            raise HookError(
                "device access of this host is decided by cgroup v1, whose rules the hook does not write; "
                "gpuiso rules apply does, once the container runs"
            )
        if found is None and " - cgroup2 " in line and fields[3] == "/":
            found = fields[4]
    if found is None:
        raise HookError("cgroup2 is not mounted here")
    return found


def _cgroup_mounts() -> list[str]:
    with open("/proc/self/mountinfo") as lines:
        return [line.rstrip("\n") for line in lines if " - cgroup" in line]


def _has_devices(line: str) -> bool:
    after = line.partition(" - ")[2]
    return after.startswith("cgroup ") and "devices" in after.rpartition(" ")[2].split(",")


def _load(program: bytes) -> int:
    return _permitted(lambda: bpf.prog_load(program, name=_NAME))


def _descriptor(program: int) -> int:
    return _permitted(lambda: bpf.prog_get_fd_by_id(program))


def _permitted(call: Callable[[], _T]) -> _T:
    """The call's result; what lacks a capability is said so."""
    try:
        return call()
    except PermissionError as error:
        raise HookError(f"{error.strerror}: {_NEEDS_ROOT}") from None
