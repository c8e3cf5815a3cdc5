# SPDX-License-Identifier: Apache-2.0
"""Whether a governor follows the registry: it holds a lock while it does, which the kernel drops with it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from gpuiso.errors import NotPermitted, UsageError

__all__ = ["LOCK", "governor_runs", "only_governor"]

LOCK = "/run/gpuiso/governor.lock"


def governor_runs(path: str = LOCK) -> bool:
    """Whether one runs now."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


@contextmanager
def only_governor(path: str = LOCK) -> Iterator[None]:
    """Holds the lock.

    :raises UsageError: another governor has it: two would freeze and thaw against each other.
    :raises NotPermitted: /run/gpuiso cannot be written.
    """
    try:
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    except PermissionError as error:
        raise NotPermitted(f"{path} cannot be written: the governor needs root") from error
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError("another governor follows the registry already") from error
        yield
    finally:
        os.close(fd)
