# SPDX-License-Identifier: Apache-2.0
"""Keeping a cgroup from being frozen: a driver call on a frozen process would hang.

Whoever works on a process (reclaim) holds a shared lock; the governor freezes only while it has the exclusive one. The
kernel drops the lock of a holder that dies.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["FreezeLock", "hold_thawed"]

HOLDS = "/run/gpuiso/holds"


def _open(cgroup: str, directory: str) -> int:
    os.makedirs(directory, mode=0o755, exist_ok=True)
    name = hashlib.sha256(cgroup.encode()).hexdigest()[:32]
    return os.open(f"{directory}/{name}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


@contextmanager
def hold_thawed(cgroup: str, directory: str = HOLDS) -> Iterator[None]:
    """While this lasts no governor freezes ``cgroup`` (a path below the root of the v2 tree).

    Waits until a governor that has it frozen thaws it, at most a period.
    """
    fd = _open(cgroup, directory)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH)
        yield
    finally:
        os.close(fd)


class FreezeLock:
    """The governor's side: to be taken before a freeze and given back after the thaw."""

    def __init__(self, cgroup: str, directory: str = HOLDS) -> None:
        self._fd = _open(cgroup, directory)

    def take(self) -> bool:
        """Whether the cgroup may be frozen now."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def give_back(self) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        os.close(self._fd)
