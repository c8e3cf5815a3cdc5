# SPDX-License-Identifier: Apache-2.0
"""The cgroups that leases are bound to: which one it is, whether anybody lives in it, and its removal."""

from __future__ import annotations

import errno
import os

from gpuiso.apply.calls import Calls
from gpuiso.apply.state import State
from gpuiso.errors import Unknown
from gpuiso.host.protocol import Host
from gpuiso.launch.lease import CgroupId

__all__ = ["Cgroups", "boot_id"]


def boot_id(host: Host) -> str:
    """What tells this boot from all others (random(4)). :raises Unknown: the kernel does not say."""
    text = host.text("/proc/sys/kernel/random/boot_id")
    if text is None:
        raise Unknown("/proc/sys/kernel/random/boot_id", "not there")
    return text.strip()


class Cgroups:
    """The real ones."""

    def __init__(self, calls: Calls, boot: str, state: State | None = None) -> None:
        self._calls = calls
        self._boot = boot
        self._state = state or State()

    def planned(self, mount: str, path: str) -> CgroupId:
        """One that is still to be made, of a name that no other has: what is there of it may be removed."""
        return CgroupId(mount, path, 0, self._boot, ours=True)

    def identify(self, mount: str, path: str, *, unit: str | None = None, ours: bool = False) -> CgroupId:
        """:raises FileNotFoundError: there is none."""
        with self._calls.cgroup(mount, path) as directory:
            return CgroupId(mount, path, os.fstat(directory).st_ino, self._boot, unit, ours)

    def populated(self, cgroup: CgroupId) -> bool:
        """Whether a process lives in that very cgroup or below it (cgroup.events)."""
        if cgroup.boot != self._boot or not cgroup.inode:
            return False
        try:
            with self._calls.cgroup(cgroup.mount, cgroup.path) as directory:
                if os.fstat(directory).st_ino != cgroup.inode:
                    return False
                return "populated 1" in self._calls.read(directory, "cgroup.events").splitlines()
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENODEV):
                return False
            raise

    def discard(self, cgroup: CgroupId) -> None:
        """Remove a cgroup that a launcher made, what is remembered of its rules, and what it made above it.

        What is in use stays.
        """
        if not cgroup.ours or cgroup.boot != self._boot:
            return
        above, _, name = cgroup.path.rpartition("/")
        try:
            with self._calls.cgroup(cgroup.mount, cgroup.path) as directory:
                if cgroup.inode and os.fstat(directory).st_ino != cgroup.inode:
                    return
                self._remove_below(directory)
            with self._calls.cgroup(cgroup.mount, above or "/") as directory:
                self._calls.rmdir(directory, name)
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            return
        self._calls.unlink(str(self._state.policy(f"cgroup {cgroup.path}")))
        for path, inode in sorted(cgroup.made, reverse=True):  # the deepest first
            self._remove_if_empty(cgroup.mount, path, inode)

    def _remove_if_empty(self, mount: str, path: str, inode: int) -> None:
        """A cgroup with nobody in it and nothing below it; one that others use by now is theirs."""
        above, _, name = path.rpartition("/")
        try:
            with self._calls.cgroup(mount, above or "/") as directory:
                if os.stat(name, dir_fd=directory, follow_symlinks=False).st_ino == inode:
                    os.rmdir(name, dir_fd=directory)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.EBUSY):
                raise

    def _remove_below(self, directory: int) -> None:
        """The cgroups that the workload made for itself, leaves first."""
        with os.scandir(directory) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        for name in names:
            below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
            try:
                self._remove_below(below)
            finally:
                os.close(below)
            self._calls.rmdir(directory, name)
