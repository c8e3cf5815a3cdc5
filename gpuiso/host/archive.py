# SPDX-License-Identifier: Apache-2.0
"""The files of a record: a directory or a .tar.gz that a stranger made, read without leaving it.

Nothing is unpacked under a name from the archive, and nothing but regular files and directories is opened. What
breaks a rule or a bound is one :class:`gpuiso.errors.BadInput` that names the file.
"""

from __future__ import annotations

import errno
import os
import stat
import weakref
import zlib
from collections.abc import Iterator
from typing import Literal, NoReturn, Protocol

from gpuiso.errors import BadInput, NotFound, NotPermitted, NotSupported
from gpuiso.host import tar
from gpuiso.kernel.openat2 import RESOLVE_BENEATH, RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, openat2

__all__ = ["MAX_FILE", "MAX_MEMBERS", "MAX_TOTAL", "Archive", "open_archive"]

MAX_FILE = 64 << 20  # bytes of one file
MAX_TOTAL = 256 << 20  # bytes of a .tar.gz, packed and unpacked
MAX_MEMBERS = 200_000  # files of a .tar.gz, names in a directory
_IN_MEMORY = 16 << 20  # bytes unpacked; more goes to a temporary file without a name
_CHUNK = 1 << 18
_MAX_PATH = 1024  # characters of a member's path
_MAX_DEPTH = 64  # its parts
_MAX_STREAMS = 10_000  # gzip members that follow each other

_INSIDE = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS
_WHAT = {
    stat.S_IFBLK: "a block device",
    stat.S_IFCHR: "a character device",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFSOCK: "a socket",
}


class Archive(Protocol):
    """Paths are relative, without ``.`` and ``..``: ``root/proc/devices``."""

    name: str

    def kind(self, path: str) -> Literal["f", "d"] | None:
        """Whether ``path`` is a file, a directory or nothing."""

    def size(self, path: str) -> int:
        """The bytes of a file that :meth:`kind` has found."""

    def read(self, path: str, limit: int = MAX_FILE) -> bytes | None:
        """The content of a file, None if there is none. :raises BadInput: larger than ``limit``."""

    def listdir(self, path: str) -> tuple[str, ...]:
        """The names in a directory, () if there is none."""

    def check(self) -> None:
        """Looks at every entry's kind. :raises BadInput: one is no file or directory, or not what it must be."""


def open_archive(path: str) -> Archive:
    """The record at ``path``, a directory or a .tar.gz.

    :raises BadInput: neither, or damaged, hostile or too large.
    :raises NotFound: no such file.
    :raises NotPermitted: not permitted to read it.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError as error:
        raise NotFound(f"no such record: {path}") from error
    except (OSError, ValueError) as error:
        if isinstance(error, PermissionError):
            raise NotPermitted(f"{path}: not permitted to read it") from error
        raise BadInput(f"cannot be opened: {getattr(error, 'strerror', error)}", file=path) from error
    info = os.fstat(fd)
    if stat.S_ISDIR(info.st_mode):
        return _Directory(path, fd)
    try:
        if not stat.S_ISREG(info.st_mode):
            raise BadInput(f"not a record: {_WHAT[stat.S_IFMT(info.st_mode)]}", file=path)
        if info.st_size > MAX_TOTAL:
            raise BadInput(f"larger than {MAX_TOTAL >> 20} MiB", file=path)
        return _TarGz(path, fd)
    finally:
        os.close(fd)


def _check_tops(archive: Archive) -> None:
    for top in ("root", "tools"):
        if archive.kind(top) == "f":
            raise BadInput("must be a directory", file=f"{archive.name}/{top}")


class _Directory:
    """A record as a directory. Each look goes through openat2(2), so that a link cannot lead out of it."""

    def __init__(self, name: str, fd: int) -> None:
        self.name = name
        self._fd = fd
        self._known: dict[str, tuple[Literal["f", "d"], int] | None] = {}
        weakref.finalize(self, os.close, fd)

    def kind(self, path: str) -> Literal["f", "d"] | None:
        known = self._look(path)
        return None if known is None else known[0]

    def size(self, path: str) -> int:
        known = self._look(path)
        return 0 if known is None else known[1]

    def read(self, path: str, limit: int = MAX_FILE) -> bytes | None:
        if self.kind(path) != "f":
            return None
        chunks: list[bytes] = []
        size = 0
        fd = self._reopen(path, os.O_RDONLY)
        try:
            while chunk := os.read(fd, _CHUNK):
                chunks.append(chunk)
                size += len(chunk)
                if size > limit:
                    raise BadInput(_too_large(limit), file=f"{self.name}/{path}")
        finally:
            os.close(fd)
        return b"".join(chunks)

    def listdir(self, path: str) -> tuple[str, ...]:
        if self.kind(path) != "d":
            return ()
        names: list[str] = []
        fd = self._reopen(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with os.scandir(fd) as entries:
                for entry in entries:
                    names.append(entry.name)
                    if len(names) > MAX_MEMBERS:
                        raise BadInput(f"more than {MAX_MEMBERS} entries", file=f"{self.name}/{path}")
        finally:
            os.close(fd)
        return tuple(names)

    def check(self) -> None:
        _check_tops(self)
        pending, count = ["root", "tools"], 0
        while pending:
            directory = pending.pop()
            try:
                names = self._kinds(directory)
            except NotPermitted:
                continue  # what cannot be looked into matters to who asks for it
            count += len(names)
            if count > MAX_MEMBERS:
                raise BadInput(f"more than {MAX_MEMBERS} files", file=self.name)
            for name, is_directory in names.items():
                path = f"{directory}/{name}"
                if is_directory is None:
                    self._look(path)  # refuses it, and says what it is
                elif is_directory and path.count("/") < _MAX_DEPTH:
                    pending.append(path)

    def _kinds(self, directory: str) -> dict[str, bool | None]:
        """The entries of a directory: whether each is a directory, None for what is neither that nor a file."""
        if self.kind(directory) != "d":
            return {}
        fd = self._reopen(directory, os.O_RDONLY | os.O_DIRECTORY)
        found: dict[str, bool | None] = {}
        try:
            with os.scandir(fd) as entries:
                for entry in entries:
                    is_directory = entry.is_dir(follow_symlinks=False)
                    found[entry.name] = is_directory if is_directory or entry.is_file(follow_symlinks=False) else None
                    if len(found) > MAX_MEMBERS:
                        raise BadInput(f"more than {MAX_MEMBERS} entries", file=f"{self.name}/{directory}")
        finally:
            os.close(fd)
        return found

    def _look(self, path: str) -> tuple[Literal["f", "d"], int] | None:
        if path not in self._known:
            self._known[path] = self._stat(path)
        return self._known[path]

    def _stat(self, path: str) -> tuple[Literal["f", "d"], int] | None:
        fd = self._open(path)
        if fd is None:
            return None
        try:
            info = os.fstat(fd)
        finally:
            os.close(fd)
        return self._plain(path, info)

    def _plain(self, path: str, info: os.stat_result) -> tuple[Literal["f", "d"], int]:
        if stat.S_ISREG(info.st_mode):
            return "f", info.st_size
        if not stat.S_ISDIR(info.st_mode):
            self._refuse(path, _WHAT[stat.S_IFMT(info.st_mode)])
        return "d", 0

    def _open(self, path: str) -> int | None:
        """An O_PATH descriptor: opening a device or a FIFO would act on it, looking at it does not."""
        try:
            return openat2(self._fd, path, os.O_PATH | os.O_CLOEXEC, resolve=_INSIDE)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
                return None
            if error.errno in (errno.ELOOP, errno.EXDEV):
                self._refuse(path, "reached through a symbolic link")
            self._fail(path, error)

    def _reopen(self, path: str, flags: int) -> int:
        place = self._open(path)
        if place is None:
            raise BadInput("vanished while it was read", file=f"{self.name}/{path}")
        try:
            self._plain(path, os.fstat(place))
            return os.open(f"/proc/self/fd/{place}", flags | os.O_CLOEXEC)
        except OSError as error:
            self._fail(path, error)
        finally:
            os.close(place)

    def _refuse(self, path: str, what: str) -> NoReturn:
        raise BadInput(
            f"is {what}: a record holds files and directories only",
            file=f"{self.name}/{path}",
            hint="links, devices, sockets and FIFOs of a host are lines of nodes.jsonl",
        )

    def _fail(self, path: str, error: OSError) -> NoReturn:
        if error.errno in (errno.EACCES, errno.EPERM):
            raise NotPermitted(f"{self.name}/{path}: not permitted to read it") from error
        if error.errno == errno.ENOSYS:
            raise NotSupported(
                "reading a record from a directory needs openat2(2), which this kernel lacks (Linux 5.6)",
                hint="pack it: tar -czf RECORD.tar.gz -C DIRECTORY .",
            ) from error
        raise BadInput(f"cannot be read: {os.strerror(error.errno or 0)}", file=f"{self.name}/{path}") from error


class _TarGz:
    """A record as .tar.gz: unpacked into memory or a nameless file, indexed, read by offset."""

    def __init__(self, name: str, packed: int) -> None:
        self.name = name
        self._memory = bytearray()
        self._spill: int | None = None
        self._length = 0
        for chunk in _gunzip(name, packed):
            self._append(chunk)
        self._files: dict[str, tuple[int, int]] = {}
        self._directories: dict[str, set[str]] = {"": set()}
        try:
            self._index()
        except tar.TarError as error:
            raise BadInput(str(error), file=name) from error

    def kind(self, path: str) -> Literal["f", "d"] | None:
        if path in self._files:
            return "f"
        return "d" if path in self._directories else None

    def size(self, path: str) -> int:
        return self._files[path][1]

    def read(self, path: str, limit: int = MAX_FILE) -> bytes | None:
        place = self._files.get(path)
        if place is None:
            return None
        offset, size = place
        if size > limit:
            raise BadInput(_too_large(limit), file=f"{self.name}/{path}")
        return self._pread(offset, size)

    def listdir(self, path: str) -> tuple[str, ...]:
        return tuple(self._directories.get(path, ()))

    def check(self) -> None:
        _check_tops(self)  # of other kinds of members none got into the index

    def _append(self, chunk: bytes) -> None:
        self._length += len(chunk)
        if self._length > MAX_TOTAL:
            raise BadInput(f"larger than {MAX_TOTAL >> 20} MiB when unpacked", file=self.name)
        if self._spill is None and self._length > _IN_MEMORY:
            import tempfile

            fd, path = tempfile.mkstemp(prefix="gpuiso-record-")
            os.unlink(path)
            weakref.finalize(self, os.close, fd)
            self._spill = fd
            self._write(bytes(self._memory))
            self._memory = bytearray()
        if self._spill is None:
            self._memory += chunk
        else:
            self._write(chunk)

    def _write(self, data: bytes) -> None:
        if self._spill is None:
            return
        view = memoryview(data)
        while view:
            view = view[os.write(self._spill, view) :]

    def _pread(self, offset: int, size: int) -> bytes:
        if self._spill is None:
            return bytes(self._memory[offset : offset + size])
        return os.pread(self._spill, size, offset)

    def _index(self) -> None:
        for count, member in enumerate(tar.members(self._pread, self._length)):
            if count == MAX_MEMBERS:
                raise tar.TarError(f"more than {MAX_MEMBERS} members")
            path = _relative(member.name)
            if member.directory:
                if path in self._files:
                    raise tar.TarError(f"member {member.name!r} stands twice")
                self._add_directory(path)
                continue
            if not path or path in self._files or path in self._directories:
                raise tar.TarError(f"member {member.name!r} stands twice")
            if member.size > MAX_FILE:
                raise tar.TarError(f"member {member.name!r}: {_too_large(MAX_FILE)}")
            parent, _, base = path.rpartition("/")
            self._add_directory(parent)
            self._directories[parent].add(base)
            self._files[path] = (member.offset, member.size)
        self._drop_wrapper()

    def _add_directory(self, path: str) -> None:
        missing: list[str] = []
        while path not in self._directories:
            if path in self._files:
                raise tar.TarError(f"member {path!r} is a file and a directory")
            missing.append(path)
            path = path.rpartition("/")[0]
        for new in reversed(missing):
            parent, _, base = new.rpartition("/")
            self._directories[parent].add(base)
            self._directories[new] = set()
        if len(self._directories) > MAX_MEMBERS:
            raise tar.TarError(f"more than {MAX_MEMBERS} directories")

    def _drop_wrapper(self) -> None:
        """``tar -czf NAME.tar.gz NAME`` puts everything below one directory, which is no part of the record."""
        top = self._directories[""]
        if len(top) != 1 or not top <= self._directories.keys():
            return
        cut = len(*top) + 1
        self._files = {path[cut:]: place for path, place in self._files.items()}
        self._directories = {path[cut:]: names for path, names in self._directories.items() if path}


def _relative(name: str) -> str:
    """A member's name without ``.`` parts. :raises TarError: absolute, or with a ``..`` part."""
    if name.startswith("/"):
        raise tar.TarError(f"member {name!r} has an absolute path")
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise tar.TarError(f"member {name!r} leaves the record")
    if len(name) > _MAX_PATH or len(parts) > _MAX_DEPTH:
        raise tar.TarError(f"member {name[:60]!r}...: a path of {len(name)} characters in {len(parts)} parts")
    return "/".join(parts)


def _gunzip(name: str, packed: int) -> Iterator[bytes]:
    """The unpacked bytes in pieces of at most :data:`_CHUNK`."""
    unpacker = zlib.decompressobj(31)  # 31: a gzip wrapper with its checksum
    data = os.read(packed, _CHUNK)
    if data[:2] != b"\x1f\x8b":
        what = "an empty file" if not data else "neither a directory nor a .tar.gz"
        raise BadInput(f"not a record: {what}", file=name)
    streams = 1
    try:
        while True:
            piece = unpacker.decompress(data, _CHUNK)
            if piece:
                yield piece
            data = unpacker.unused_data if unpacker.eof else unpacker.unconsumed_tail
            if unpacker.eof:
                data = data.lstrip(b"\0") or os.read(packed, _CHUNK).lstrip(b"\0")
                if not data:
                    return
                streams += 1  # gzip members may follow each other (RFC 1952, 2.2)
                if streams > _MAX_STREAMS:
                    raise BadInput(f"more than {_MAX_STREAMS} gzip members", file=name)
                unpacker = zlib.decompressobj(31)
            elif not data:
                data = os.read(packed, _CHUNK)
                if not data and not piece:
                    raise BadInput("truncated: the gzip stream has no end", file=name)
    except zlib.error as error:
        raise BadInput(f"damaged: not a gzip stream ({error})", file=name) from error


def _too_large(limit: int) -> str:
    return f"larger than {limit >> 20} MiB"
