# SPDX-License-Identifier: Apache-2.0
"""Another process's files, read where they may never answer.

A mount namespace may hold file systems that programs or networks serve (FUSE, NFS). A look at a file there can wait
forever, and not even SIGKILL ends the wait. Such a view is read by a forked child: at the deadline it is left
behind, and the view answers nothing any more.
"""

from __future__ import annotations

import os
import pickle
import re
import select
import signal
import struct
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar, cast

from gpuiso.errors import NotFound, Unknown
from gpuiso.host.mounts import covering_mount, mounts
from gpuiso.host.protocol import Host

__all__ = ["Views"]

_T = TypeVar("_T")

DEADLINE = 1.0  # seconds for one answer; a network file system that works takes milliseconds
LATER = 0.2  # seconds for one answer, once a view on this machine did not give any
_MAX_CHILDREN = 16

#: What leads into the process's own file system: a look at any of these, or below, asks that file system.
_IN_VIEW = re.compile(r"/proc/(\d+)/(?:root|cwd|exe|fd/\d+|map_files/[^/]+)(?:/.*)?")
#: File systems that the kernel answers for by itself, from memory or a disk.
_LOCAL = frozenset(
    word
    for line in (
        "autofs bcachefs binfmt_misc bpf btrfs cgroup cgroup2 configfs debugfs devpts devtmpfs efivarfs",
        "erofs exfat ext2 ext3 ext4 f2fs fusectl hugetlbfs iso9660 mqueue nsfs ntfs3 overlay proc pstore",
        "ramfs resctrl rootfs rpc_pipefs securityfs selinuxfs squashfs sysfs tmpfs tracefs udf vfat xfs",
        "zfs",
    )
    for word in line.split()
)
_SIZE = struct.Struct("=Q")


class Views:
    """The views of one machine's processes. ``host`` is asked for their mounts."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._keys: dict[int, tuple[str | None, str | None]] = {}
        self._doubtful: dict[tuple[str | None, str | None], bool] = {}
        self._children: dict[tuple[str | None, str | None], _Child] = {}
        self._silent: set[tuple[str | None, str | None]] = set()
        weakref.finalize(self, _leave_all, self._children)

    def ask(self, question: Callable[[str], _T], path: str) -> _T:
        """``question(path)``. :raises Unknown: the file system there does not answer."""
        match = _IN_VIEW.fullmatch(path)
        if match is None:
            return question(path)
        key = self._key(int(match[1]))
        if not self._is_doubtful(key, int(match[1])):
            return question(path)
        if key in self._silent:
            raise Unknown(path, _why())
        child = self._child(key)
        try:
            return cast("_T", child.ask(question, path, LATER if self._silent else DEADLINE))
        except _SilentError:
            self._silent.add(key)
            self._children.pop(key).leave()
            raise Unknown(path, _why()) from None

    def _key(self, pid: int) -> tuple[str | None, str | None]:
        """Processes of one mount namespace with one root have one view."""
        if pid not in self._keys:
            self._keys[pid] = _link(f"/proc/{pid}/ns/mnt"), _link(f"/proc/{pid}/root")
        return self._keys[pid]

    def _is_doubtful(self, key: tuple[str | None, str | None], pid: int) -> bool:
        if key not in self._doubtful:
            own = _link("/proc/self/ns/mnt"), _link("/proc/self/root")
            self._doubtful[key] = key != own and self._may_hang(pid)
        return self._doubtful[key]

    def _may_hang(self, pid: int) -> bool:
        try:
            table = mounts(self._host, pid)
        except (NotFound, Unknown):
            return False  # what may not be read of it is said by the question itself
        # A root that is no mount point is on a file system that the table does not show.
        return covering_mount(table, "/") is None or any(mount.fstype not in _LOCAL for mount in table)

    def _child(self, key: tuple[str | None, str | None]) -> _Child:
        if key not in self._children:
            if len(self._children) >= _MAX_CHILDREN:
                self._children.pop(next(iter(self._children))).leave()
            self._children[key] = _Child()
        return self._children[key]


def _leave_all(children: dict[tuple[str | None, str | None], _Child]) -> None:
    while children:
        children.popitem()[1].leave()


def _why() -> str:
    return "the file system there does not answer (FUSE or a network)"


def _link(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None


class _SilentError(Exception):
    """No answer within the deadline."""


@dataclass(frozen=True, slots=True)
class _Raised:
    """Unknown, on its way from a child."""

    what: str
    why: str


class _Child:
    """A fork of this process that answers questions, one after the other."""

    def __init__(self) -> None:
        theirs_in, self._questions = os.pipe()
        self._answers, theirs_out = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            _serve(theirs_in, theirs_out)
        os.close(theirs_in)
        os.close(theirs_out)
        os.set_blocking(self._answers, False)

    def ask(self, question: Callable[[str], Any], path: str, deadline: float) -> Any:
        limit = time.monotonic() + deadline
        data = pickle.dumps((question, path))
        try:
            os.write(self._questions, _SIZE.pack(len(data)) + data)
        except BrokenPipeError:
            raise _SilentError from None
        (size,) = _SIZE.unpack(self._read(_SIZE.size, limit))
        answer = pickle.loads(self._read(size, limit))  # noqa: S301 - our own fork wrote it
        if isinstance(answer, _Raised):
            raise Unknown(answer.what, answer.why)
        return answer

    def _read(self, size: int, limit: float) -> bytes:
        chunks: list[bytes] = []
        while size:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, limit - time.monotonic()))
            chunk = os.read(self._answers, min(size, 1 << 20)) if ready else b""
            if not chunk:
                raise _SilentError
            chunks.append(chunk)
            size -= len(chunk)
        return b"".join(chunks)

    def leave(self) -> None:
        """Kills it, and waits no longer than an ordinary process takes to die."""
        os.close(self._questions)
        os.close(self._answers)
        os.kill(self._pid, signal.SIGKILL)
        for _ in range(20):
            if os.waitpid(self._pid, os.WNOHANG)[0]:
                return
            time.sleep(0.001)


def _serve(questions: int, answers: int) -> NoReturn:
    # Whoever reads our output waits for its end: a child that hangs must not hold it open.
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    low, high = sorted((questions, answers))
    for first, last in ((3, low), (low + 1, high), (high + 1, os.sysconf("SC_OPEN_MAX"))):
        os.closerange(first, last)
    try:
        with os.fdopen(questions, "rb") as stream:
            while head := stream.read(_SIZE.size):
                question, path = pickle.loads(stream.read(_SIZE.unpack(head)[0]))  # noqa: S301 - our parent wrote it
                data = pickle.dumps(_answer(question, path))
                view = memoryview(_SIZE.pack(len(data)) + data)
                while view:
                    view = view[os.write(answers, view) :]
    finally:
        os._exit(0)


def _answer(question: Callable[[str], Any], path: str) -> Any:
    try:
        return question(path)
    except Unknown as error:
        return _Raised(error.what, error.why)
