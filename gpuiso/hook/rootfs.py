# SPDX-License-Identifier: Apache-2.0
"""The container's root filesystem, whose every name and link is the container's own.

Each path is resolved by openat2(2) below one descriptor of the root: ``..`` and absolute links stay below it, and
the links of /proc that lead elsewhere are refused. What is written is written next to its place, in a directory held
by descriptor, and renamed.
"""

from __future__ import annotations

import errno
import os
import stat

from gpuiso.hook.errors import HookError
from gpuiso.hook.undo import Undo
from gpuiso.kernel.openat2 import RESOLVE_IN_ROOT, RESOLVE_NO_MAGICLINKS, openat2

__all__ = ["Held", "Rootfs"]

_RESOLVE = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS
_DIRECTORY = os.O_PATH | os.O_DIRECTORY
_TRIES = 128
_LONGEST = 4096


class Rootfs:
    """An opened root filesystem. ``undo`` learns of every change.

    Methods raise OSError for what the file system refuses and HookError for what makes no sense.
    """

    def __init__(self, path: str, undo: Undo) -> None:
        self.path = path
        self.undo = undo
        self._names = 0
        self._directories: dict[str, Held] = {}
        try:
            self.fd = os.open(path, _DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise HookError(f"the root filesystem {path}: {error.strerror}") from None

    def __del__(self) -> None:
        if hasattr(self, "fd"):
            os.close(self.fd)

    def open(self, path: str, flags: int) -> int:
        """A descriptor of what ``path`` leads to below the root; nothing is created."""
        for tries_left in reversed(range(_TRIES)):
            try:
                return openat2(self.fd, path, flags | os.O_CLOEXEC, 0, _RESOLVE)
            except OSError as error:
                # EAGAIN: something was renamed while ".." was resolved. Whoever does so without end gets no GPU.
                if error.errno == errno.ENOSYS:
                    raise HookError("this kernel has no openat2 (before 5.6)") from None
                if error.errno != errno.EAGAIN or not tries_left:
                    raise
        raise AssertionError("unreachable: the last try returns or raises")

    def directory(self, path: str, *, make: bool = False) -> int:
        """A descriptor of a directory; with ``make`` it and those above are made if missing."""
        try:
            return self.open(path or "/", _DIRECTORY)
        except FileNotFoundError:
            if not make:
                raise
        above, name = split(path)
        parent = Held(self.directory(above, make=True))
        try:
            os.mkdir(name, 0o755, dir_fd=parent.fd)
            self.undo.on_failure(_Remove(parent, name, directory=True))
        except FileExistsError:
            pass  # made meanwhile, or a link that leads nowhere: the next line tells
        return self.open(path, _DIRECTORY)

    def names(self, path: str) -> list[str]:
        """The names in a directory; none if there is no such directory."""
        try:
            fd = self.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except (FileNotFoundError, NotADirectoryError):
            return []
        try:
            return os.listdir(fd)
        finally:
            os.close(fd)

    def read(self, path: str, limit: int) -> bytes | None:
        """A regular file; None if there is none, or if it is longer than ``limit``."""
        try:
            place = self.open(path, os.O_PATH)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if error.errno == errno.ELOOP:  # a link in a circle, or one of /proc
                return None
            raise
        try:
            # A device that only seems to be the file must not be opened: an open can set off things.
            if not stat.S_ISREG(os.fstat(place).st_mode):
                return None
            fd = os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            os.close(place)
        try:
            data = b""
            while len(data) <= limit and (part := os.read(fd, limit + 1 - len(data))):
                data += part
            return data if len(data) <= limit else None
        finally:
            os.close(fd)

    def symlink(self, target: str, path: str) -> None:
        """A symbolic link at ``path``, in place of another link or file."""
        above, name = split(path)
        directory = self._held_directory(above)
        try:
            os.symlink(target, name, dir_fd=directory.fd)
        except FileExistsError:
            pass
        else:
            self.undo.on_failure(_Remove(directory, name))
            return
        try:
            if os.readlink(name, dir_fd=directory.fd) == target:
                return
        except OSError as error:
            if error.errno != errno.EINVAL:  # it is no link
                raise
        temporary = self._name()
        os.symlink(target, temporary, dir_fd=directory.fd)
        self._put(directory, temporary, name)

    def write(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """A file at ``path`` with this content, in place of another file or link."""
        above, name = split(path)
        directory = self._held_directory(above)
        temporary = self._name()
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode, dir_fd=directory.fd)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(fd, rest) :]
            os.fchmod(fd, mode)
        except BaseException:
            os.unlink(temporary, dir_fd=directory.fd)
            raise
        finally:
            os.close(fd)
        self._put(directory, temporary, name)

    def _held_directory(self, path: str) -> Held:
        """A directory to write to, made if missing. Many files go to few directories: each is resolved once."""
        held = self._directories.get(path)
        if held is None:
            held = self._directories[path] = Held(self.directory(path, make=True))
        return held

    def _put(self, directory: Held, temporary: str, name: str) -> None:
        """Rename into place; what was there is kept under another name until all is done."""
        fd = directory.fd
        try:
            kept: str | None = self._name()
            try:
                if stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
                    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
                os.rename(name, kept or "", src_dir_fd=fd, dst_dir_fd=fd)
            except FileNotFoundError:
                kept = None
            self.undo.on_failure(_PutBack(directory, name, kept))
            if kept is not None:
                self.undo.on_success(_Remove(directory, kept))
            os.rename(temporary, name, src_dir_fd=fd, dst_dir_fd=fd)
        except BaseException:
            os.unlink(temporary, dir_fd=fd)
            raise

    def _name(self) -> str:
        self._names += 1
        return f".gpuiso-hook-{os.getpid()}-{self._names}-{os.urandom(4).hex()}"


def split(path: str) -> tuple[str, str]:
    """Directory and name. :raises HookError: the path has no last name that could be made."""
    if "\0" in path or len(path) > _LONGEST:
        raise HookError("a path in the container holds a NUL or is too long")
    above, _, name = path.rstrip("/").rpartition("/")
    if name in ("", ".", ".."):
        raise HookError(f"{path!r} names no file in the container")
    return above, name


class Held:
    """A descriptor that is closed when nobody needs it any more."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self) -> None:
        os.close(self.fd)


class _Remove:
    """Removes a name from a directory; one that is gone is fine."""

    def __init__(self, parent: Held, name: str, *, directory: bool = False) -> None:
        self._parent = parent
        self._name = name
        self._remove = os.rmdir if directory else os.unlink

    def __call__(self) -> None:
        try:
            self._remove(self._name, dir_fd=self._parent.fd)
        except FileNotFoundError:
            pass


class _PutBack:
    """Puts the file that was kept back into its place, or removes the one that took an empty place."""

    def __init__(self, parent: Held, name: str, kept: str | None) -> None:
        self._parent = parent
        self._name = name
        self._kept = kept

    def __call__(self) -> None:
        fd = self._parent.fd
        try:
            if self._kept is None:
                os.unlink(self._name, dir_fd=fd)
            else:
                os.rename(self._kept, self._name, src_dir_fd=fd, dst_dir_fd=fd)
        except FileNotFoundError:
            pass
