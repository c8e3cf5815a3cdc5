# SPDX-License-Identifier: Apache-2.0
"""Every call that a plan makes to change a host, or to look before it does: one method a call.

Steps reach the kernel, the journal's file system and systemd through one :class:`Calls` alone, so that a test can
make any single one of them fail, or end the process at it. Methods raise OSError; those of systemd raise
:class:`gpuiso.errors.GpuisoError`.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from gpuiso.devfilter.owner import GPUISO_NAME
from gpuiso.kernel import bpf
from gpuiso.kernel.openat2 import (
    RESOLVE_BENEATH,
    RESOLVE_NO_MAGICLINKS,
    RESOLVE_NO_SYMLINKS,
    RESOLVE_NO_XDEV,
    openat2,
)
from gpuiso.systemd.bus import Bus, Property, connect

__all__ = ["Calls"]

_BENEATH = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV
_RMDIR_TRIES = 10  # a cgroup stays busy for a moment after its last task ended


class Calls:
    """The calls themselves. ``cgroup`` paths start with "/", which is the mount point of the hierarchy."""

    # Directories and files of a cgroup hierarchy

    def open_cgroup(self, mount: str, cgroup: str) -> int:
        """A descriptor of a cgroup directory; nothing on the way may be a link or another file system.

        :raises OSError: ENOENT there is none; ELOOP or EXDEV something leads out of the hierarchy.
        """
        root = os.open(mount, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            return openat2(root, cgroup.strip("/") or ".", flags, resolve=_BENEATH)
        finally:
            os.close(root)

    @contextmanager
    def cgroup(self, mount: str, cgroup: str) -> Iterator[int]:
        """The same for the length of a with block."""
        directory = self.open_cgroup(mount, cgroup)
        try:
            yield directory
        finally:
            os.close(directory)

    def mkdir(self, directory: int, name: str) -> None:
        """A new cgroup below ``directory``, mode 0755 as the kernel's own."""
        os.mkdir(name, 0o755, dir_fd=directory)

    def rmdir(self, directory: int, name: str) -> None:
        """Remove an empty cgroup; tries for a second while the kernel still counts ended tasks."""
        delay = 0.001
        for tries_left in reversed(range(_RMDIR_TRIES)):
            try:
                os.rmdir(name, dir_fd=directory)
                return
            except OSError as error:
                if error.errno != errno.EBUSY or not tries_left:
                    raise
            time.sleep(delay)
            delay *= 2

    def read(self, directory: int, name: str) -> str:
        """The content of a control file."""
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        with open(fd, "rb") as file:
            return file.read().decode("utf-8", "replace")

    def write(self, directory: int, name: str, text: str) -> None:
        """One write(2) to a control file, which is one command to the kernel."""
        fd = os.open(name, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)

    def writable(self, directory: int, name: str) -> bool:
        """Whether a control file may be written to; a file that is not there yet may."""
        return os.access(name, os.W_OK, dir_fd=directory, effective_ids=True) or not self._exists(directory, name)

    @staticmethod
    def _exists(directory: int, name: str) -> bool:
        try:
            os.stat(name, dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    # Device programs

    def prog_query(self, directory: int) -> bpf.Query:
        return bpf.prog_query(directory)

    def prog_open(self, number: int) -> int:
        return bpf.prog_get_fd_by_id(number)

    def prog_info(self, program: int) -> bpf.ProgInfo:
        return bpf.prog_info(program)

    def prog_load(self, insns: bytes, name: str = GPUISO_NAME) -> int:
        return bpf.prog_load(insns, name=name)

    def prog_attach(self, directory: int, program: int) -> None:
        bpf.prog_attach(directory, program)

    def prog_replace(self, directory: int, program: int, old: int) -> None:
        flags = bpf.BPF_F_ALLOW_MULTI | bpf.BPF_F_REPLACE
        bpf.prog_attach(directory, program, flags=flags, replace_fd=old)

    def prog_detach(self, directory: int, program: int) -> None:
        bpf.prog_detach(directory, program)

    # Processes

    def pidfd_open(self, pid: int) -> int:
        return os.pidfd_open(pid)

    def alive(self, pidfd: int) -> bool:
        """Whether the process of a pidfd still runs."""
        try:
            signal.pidfd_send_signal(pidfd, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True

    # systemd

    def _bus(self) -> Bus:
        return connect()

    def unit_by_cgroup(self, cgroup: str) -> str | None:
        return self._bus().unit_by_cgroup(cgroup)

    def unit_properties(self, unit: str) -> Mapping[str, Any]:
        return self._bus().unit_properties(unit)

    def set_unit_properties(self, unit: str, properties: Sequence[Property], *, runtime: bool) -> None:
        self._bus().set_unit_properties(unit, properties, runtime=runtime)

    def start_scope(self, unit: str, properties: Sequence[Property]) -> None:
        self._bus().start_transient_unit(unit, properties)

    def stop_unit(self, unit: str) -> None:
        self._bus().stop_unit(unit)

    def attach_processes(self, unit: str, pids: Sequence[int]) -> None:
        self._bus().attach_processes(unit, pids)

    # Files of gpuiso's own, and drop-ins of systemd's

    def open_append(self, path: str) -> int:
        """A new or existing file to append to, readable by its owner alone."""
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def append(self, fd: int, data: bytes) -> None:
        """All of ``data`` in one write. :raises OSError: ENOSPC also where only a part of it fitted."""
        if os.write(fd, data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fsync(self, fd: int) -> None:
        os.fsync(fd)

    def replace_file(self, path: str, data: bytes, mode: int = 0o600) -> None:
        """The whole content of a file, put there in one step and on disk when this returns."""
        partial = f"{path}.partial"
        fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
        try:
            with open(fd, "wb", closefd=False) as file:
                file.write(data)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(partial, path)

    def rename(self, path: str, new: str) -> None:
        os.rename(path, new)

    def unlink(self, path: str) -> None:
        """Remove a file; one that is gone already is fine."""
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass

    def rmdir_if_empty(self, path: str) -> None:
        """Remove a directory unless something is in it."""
        try:
            os.rmdir(path)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY):
                raise
