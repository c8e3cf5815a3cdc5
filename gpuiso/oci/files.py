# SPDX-License-Identifier: Apache-2.0
"""Replacing a file in one step, so that no reader ever sees half of it."""

from __future__ import annotations

import contextlib
import os
import tempfile

from gpuiso.errors import FailedAndUndone, NotPermitted

__all__ = ["replace_file"]


def replace_file(path: str, data: bytes, *, mode: int = 0o644, owner: tuple[int, int] | None = None) -> None:
    """Put ``data`` in the place of the file at ``path``, which keeps its mode and owner; a new one gets
    ``mode`` and ``owner`` (uid and gid; the caller's if None).

    A symbolic link stays, and the file it leads to is replaced. The data is on the disk before the name is,
    and the old file stays in place whatever fails.

    :raises NotPermitted: the directory may not be written, or the owner may not be kept.
    :raises FailedAndUndone: any other failure; the old file is untouched.
    """
    target = os.path.realpath(path)
    directory = os.path.dirname(target) or "."
    try:
        _write_beside(target, directory, data, mode, owner)
    except PermissionError as error:
        raise NotPermitted(f"{path}: not permitted to replace it: {error.strerror}") from error
    except OSError as error:
        raise FailedAndUndone(f"{path}: cannot be written: {error.strerror}") from error


def _write_beside(target: str, directory: str, data: bytes, mode: int, owner: tuple[int, int] | None) -> None:
    try:
        old: os.stat_result | None = os.stat(target)
    except FileNotFoundError:
        old = None
    fd, temporary = tempfile.mkstemp(prefix=f".{os.path.basename(target)}.", suffix=".tmp", dir=directory)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            wanted = owner if old is None else (old.st_uid, old.st_gid)
            if wanted is not None and wanted != (os.geteuid(), os.getegid()):
                os.fchown(fd, *wanted)
            os.fchmod(fd, mode if old is None else old.st_mode & 0o7777)
            os.fsync(fd)
        os.rename(temporary, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    directory_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory_fd)
    finally:
        os.close(directory_fd)
