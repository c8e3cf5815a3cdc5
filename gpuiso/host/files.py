# SPDX-License-Identifier: Apache-2.0
"""Reading files of the running machine, including those below another process's root.

What lies below ``/proc/PID/root`` belongs to that process: its links may point anywhere. Such paths are resolved by
openat2(2) with RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS against the process's root directory, so nothing a container
puts there leads out of it. Only regular files are read, so that a FIFO or a device cannot block or act.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from gpuiso.errors import Unknown
from gpuiso.host.protocol import Node, NodeType
from gpuiso.kernel.openat2 import RESOLVE_IN_ROOT, RESOLVE_NO_MAGICLINKS, openat2

__all__ = [
    "MAX_FILE",
    "get_xattr",
    "list_directory",
    "lstat_node",
    "node_from_stat",
    "read_file",
    "read_link",
    "stat_node",
]

MAX_FILE = 64 << 20  # bytes; the largest files gpuiso reads (ld.so.cache, configuration, /proc) are far smaller

_IN_ROOT = re.compile(r"(/proc/(?:\d+|self)/root)(/.*)?")
#: What says that a path does not exist. ESRCH: the process ended after its /proc directory was opened.
_ABSENT = {errno.ENOENT, errno.ENOTDIR, errno.ESRCH, errno.ELOOP}
_RETRIES = 16
_MAGIC = "it leads through a link of /proc that only its own process can follow (RESOLVE_NO_MAGICLINKS)"


@contextmanager
def _opened(path: str, flags: int) -> Iterator[int]:
    match = _IN_ROOT.fullmatch(path)
    if match is None:
        fd = os.open(path, flags | os.O_CLOEXEC)
    else:
        root = os.open(match[1], os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fd = _open_in_root(root, match[2] or "/", flags | os.O_CLOEXEC)
        finally:
            os.close(root)
    try:
        yield fd
    finally:
        os.close(fd)


def _open_in_root(root: int, path: str, flags: int) -> int:
    for _ in range(_RETRIES - 1):
        try:
            return openat2(root, path, flags, resolve=RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS)
        except BlockingIOError:
            continue  # EAGAIN: something in the path was renamed meanwhile
        except OSError as error:
            if error.errno == errno.ELOOP and _meets_magic_link(root, path):
                raise OSError(errno.EXDEV, _MAGIC, path) from error
            raise
    return openat2(root, path, flags, resolve=RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS)


def _meets_magic_link(root: int, path: str) -> bool:
    """Tells the two reasons of ELOOP apart: RESOLVE_IN_ROOT alone refuses a magic link with EXDEV (nd_jump_link())."""
    try:
        os.close(openat2(root, path, os.O_PATH | os.O_CLOEXEC, resolve=RESOLVE_IN_ROOT))
    except OSError as error:
        return error.errno == errno.EXDEV
    return True  # it ends in one


def _absent_or_unknown(path: str, error: OSError) -> None:
    if error.errno in _ABSENT:
        return
    why = "not permitted to read it" if error.errno in (errno.EACCES, errno.EPERM) else os.strerror(error.errno or 0)
    if error.errno == errno.EXDEV:
        why = error.strerror or why
    raise Unknown(path, why) from error


def read_file(path: str) -> bytes | None:
    """The bytes of a regular file, None if there is none (a directory or a device is none either).

    :raises Unknown: not permitted, an input/output error, or larger than :data:`MAX_FILE`.
    """
    try:
        # O_PATH first: opening a device or a FIFO acts on it, looking at it does not.
        with _opened(path, os.O_PATH) as place:
            if not stat.S_ISREG(os.fstat(place).st_mode):
                return None
            fd = os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return _read_all(path, fd)
        finally:
            os.close(fd)
    except OSError as error:
        _absent_or_unknown(path, error)
        return None


def _read_all(path: str, fd: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    while chunk := os.read(fd, 1 << 16):
        chunks.append(chunk)
        size += len(chunk)
        if size > MAX_FILE:
            raise Unknown(path, f"larger than {MAX_FILE >> 20} MiB")
    return b"".join(chunks)


def list_directory(path: str) -> tuple[str, ...] | None:
    """The names in a directory, sorted; None if there is no such directory. :raises Unknown: as read_file."""
    try:
        with _opened(path, os.O_RDONLY | os.O_DIRECTORY) as fd:
            return tuple(sorted(os.listdir(fd)))
    except OSError as error:
        _absent_or_unknown(path, error)
        return None


def lstat_node(path: str) -> Node | None:
    """The entry itself. :raises Unknown: as read_file."""
    return _node(path, os.O_PATH | os.O_NOFOLLOW)


def stat_node(path: str) -> Node | None:
    """What the path leads to. :raises Unknown: as read_file."""
    return _node(path, os.O_PATH)


def read_link(path: str) -> str | None:
    """A link's target, None if the path does not exist or is no link. :raises Unknown: as read_file."""
    below = _IN_ROOT.fullmatch(path)
    if below is None or below[2] is None:  # /proc/PID/root itself is a link of /proc
        try:
            return os.readlink(path)  # also for /proc's magic links, which O_PATH | O_NOFOLLOW does not name fully
        except OSError as error:
            if error.errno != errno.EINVAL:
                _absent_or_unknown(path, error)
            return None
    node = lstat_node(path)
    return None if node is None else node.target


def get_xattr(path: str, name: str) -> bytes | None:
    """An extended attribute of what the path leads to, None if there is none. :raises Unknown: as read_file."""
    try:
        with _opened(path, os.O_PATH) as place:
            return os.getxattr(f"/proc/self/fd/{place}", name)
    except OSError as error:
        if error.errno not in (errno.ENODATA, errno.EOPNOTSUPP):
            _absent_or_unknown(path, error)
        return None


def _node(path: str, flags: int) -> Node | None:
    try:
        with _opened(path, flags) as fd:
            info = os.fstat(fd)
            target = os.readlink("", dir_fd=fd) if stat.S_ISLNK(info.st_mode) else None
            device = stat.S_ISCHR(info.st_mode) or stat.S_ISBLK(info.st_mode)
            placed = _placed(fd) if device and _IN_ROOT.fullmatch(path) else (None, None)
    except OSError as error:
        _absent_or_unknown(path, error)
        return None
    node = node_from_stat(path, info, target)
    return node if placed[0] is None else replace(node, mount=placed[0], nodev=placed[1])


def _placed(fd: int) -> tuple[int | None, bool | None]:
    """The id of the mount that an open entry lies on (proc_pid_fdinfo(5)), and whether that mount has nodev."""
    with open(f"/proc/self/fdinfo/{fd}", "rb") as file:
        number = re.search(rb"^mnt_id:\s*(\d+)$", file.read(), re.MULTILINE)
    return (None if number is None else int(number[1])), bool(os.fstatvfs(fd).f_flag & os.ST_NODEV)


_TYPES: dict[int, NodeType] = {
    stat.S_IFBLK: "b",
    stat.S_IFCHR: "c",
    stat.S_IFDIR: "d",
    stat.S_IFREG: "f",
    stat.S_IFLNK: "l",
    stat.S_IFIFO: "p",
    stat.S_IFSOCK: "s",
}


def node_from_stat(path: str, info: os.stat_result, target: str | None = None) -> Node:
    """A stat(2) result as a :class:`Node`."""
    kind = _TYPES[stat.S_IFMT(info.st_mode)]
    device = kind in ("b", "c")
    return Node(
        path=path,
        type=kind,
        mode=stat.S_IMODE(info.st_mode),
        uid=info.st_uid,
        gid=info.st_gid,
        major=os.major(info.st_rdev) if device else None,
        minor=os.minor(info.st_rdev) if device else None,
        target=target,
        size=info.st_size,
        ctime=info.st_ctime,
    )
