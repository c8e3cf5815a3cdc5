# SPDX-License-Identifier: Apache-2.0
"""Keeping a cgroup from being frozen: a driver call on a frozen process would hang.

Whoever works on a process (reclaim) holds a shared lock; the governor freezes only while it has the exclusive one. The
kernel drops the lock of a holder that dies. The files are there while somebody holds one; that of a holder that was
killed stays until the next one lets go.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from gpuiso.errors import TimedOut

__all__ = ["HOLDS", "FreezeLock", "hold_thawed"]

HOLDS = "/run/gpuiso/holds"
_PATIENCE = 5.0  # seconds; a period of gpu.max is at most one
_PAUSE = 0.005


def _path(cgroup: str, directory: str) -> str:
    return f"{directory}/{hashlib.sha256(cgroup.encode()).hexdigest()[:32]}"


def _locked(cgroup: str, directory: str, operation: int) -> int:
    """A descriptor of the cgroup's file with a lock on it.

    Whoever lets go removes the file, so the one that was opened may be gone once it is locked: then the lock keeps
    nobody out, and the file of that name is tried anew.

    :raises BlockingIOError: somebody else has it, with LOCK_NB.
    """
    os.makedirs(directory, mode=0o700, exist_ok=True)
    path = _path(cgroup, directory)
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, operation)
            if _is_at(fd, path):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _is_at(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _let_go(fd: int, cgroup: str, directory: str) -> None:
    """Remove the file, unless somebody else has a lock on it, and drop the lock."""
    path = _path(cgroup, directory)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_at(fd, path):
            os.unlink(path)
    except BlockingIOError:
        pass  # who goes last removes it
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)  # a child that was forked meanwhile has the descriptor too
        os.close(fd)


def _patiently(cgroup: str, directory: str) -> int:
    limit = time.monotonic() + _PATIENCE
    while True:
        try:
            return _locked(cgroup, directory, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > limit:
                raise TimedOut(
                    f"a governor has kept {cgroup} frozen for more than {_PATIENCE:g} s",
                    hint=f"fuser {_path(cgroup, directory)} names its process",
                ) from None
            time.sleep(_PAUSE)


@contextmanager
def hold_thawed(cgroup: str, directory: str = HOLDS) -> Iterator[None]:
    """While this lasts no governor freezes ``cgroup`` (a path below the root of the v2 tree).

    Waits until a governor that has it frozen thaws it, which takes a period and no more.

    :raises TimedOut: the governor that has it frozen does not thaw it, for it is stopped itself.
    """
    fd = _patiently(cgroup, directory)
    try:
        yield
    finally:
        _let_go(fd, cgroup, directory)


class FreezeLock:
    """The governor's side: to be taken before a freeze and given back after the thaw.

    :raises OSError: its file cannot be made.
    """

    def __init__(self, cgroup: str, directory: str = HOLDS) -> None:
        self._cgroup, self._directory = cgroup, directory
        self._fd: int | None = None
        if self.take():
            self.give_back()

    def take(self) -> bool:
        """Whether the cgroup may be frozen now."""
        if self._fd is None:
            try:
                self._fd = _locked(self._cgroup, self._directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True

    def give_back(self) -> None:
        if self._fd is not None:
            _let_go(self._fd, self._cgroup, self._directory)
            self._fd = None
