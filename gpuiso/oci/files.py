# SPDX-License-Identifier: Apache-2.0
"""Replacing a file in one step, so that no reader ever sees half of it."""

from __future__ import annotations

import contextlib
import os
import shlex
import stat
import tempfile

from gpuiso.errors import BadInput, FailedAndUndone, NotPermitted

__all__ = ["replace_file", "write_output"]

_STANDARD_OUTPUTS = (1, 2)


def write_output(path: str, data: bytes) -> None:
    """Put ``data`` where the user asked for output: a device, a FIFO or what is our own standard output (as
    ``/dev/stdout`` is) is written into, anything else is :func:`replace_file`'s.

    :raises BadInput: a directory, a socket or a disk, or there is no such directory.
    :raises NotPermitted: it may not be written.
    :raises FailedAndUndone: any other failure. What was written into a device or FIFO stays written.
    :raises BrokenPipeError: who read the FIFO or our standard output is gone.
    """
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        replace_file(path, data)
        return
    own = next((fd for fd in _STANDARD_OUTPUTS if _is_open_as(fd, found)), None)
    if own is None and not stat.S_ISCHR(found.st_mode) and not stat.S_ISFIFO(found.st_mode):
        replace_file(path, data)
        return
    try:
        with open(os.dup(own) if own is not None else os.open(path, os.O_WRONLY | os.O_NOCTTY), "wb") as file:
            file.write(data)
    except BrokenPipeError:
        raise  # nobody reads it any more, which is no failure of ours
    except PermissionError as error:
        raise NotPermitted(f"{path}: not permitted to write into it: {error.strerror}") from error
    except OSError as error:
        raise FailedAndUndone(f"{path}: cannot be written: {error.strerror}") from error


def _is_open_as(fd: int, found: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), found)
    except OSError:
        return False


def replace_file(path: str, data: bytes, *, mode: int = 0o644, owner: tuple[int, int] | None = None) -> None:
    """Put ``data`` in the place of the file at ``path``, which keeps its mode and owner; a new one gets
    ``mode`` and ``owner`` (uid and gid; the caller's if None).

    A symbolic link stays, and the file it leads to is replaced. The data is on the disk before the name is,
    and the old file stays in place whatever fails.

    :raises BadInput: there is no such directory, or what is there is no regular file: a device, a FIFO or a link
        that leads nowhere is never replaced.
    :raises NotPermitted: the directory may not be written, or the owner may not be kept.
    :raises FailedAndUndone: any other failure; the old file is untouched.
    """
    target = _regular_target(path)
    directory = os.path.dirname(target)
    try:
        _write_beside(target, directory, data, mode, owner)
    except PermissionError as error:
        raise NotPermitted(f"{path}: not permitted to replace it: {error.strerror}") from error
    except OSError as error:
        raise FailedAndUndone(f"{path}: cannot be written: {error.strerror}") from error


def _regular_target(path: str) -> str:
    """The absolute path of the file that a name stands for, links followed."""
    if not os.path.basename(path):
        raise BadInput("is not the name of a file", file=path or "''")
    try:
        target = os.path.realpath(path)
        if not os.path.lexists(path):
            directory = os.path.dirname(target)
            if not os.path.isdir(directory):
                raise BadInput(
                    f"there is no directory {directory}", file=path, hint=f"mkdir -p {shlex.quote(directory)}"
                )
            return target
        mode = os.stat(target).st_mode
    except FileNotFoundError as error:
        raise BadInput("is a link that leads nowhere, or relative to a directory that is gone", file=path) from error
    except PermissionError as error:
        raise NotPermitted(f"{path}: not permitted to replace it: {error.strerror}") from error
    except (OSError, ValueError) as error:
        raise BadInput(f"cannot be written: {getattr(error, 'strerror', None) or error}", file=path) from error
    if not stat.S_ISREG(mode):
        raise BadInput("is not a regular file, and is not replaced", file=path)
    return target


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
