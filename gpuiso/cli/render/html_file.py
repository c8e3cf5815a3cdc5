# SPDX-License-Identifier: Apache-2.0
"""Writes a page, whole or not at all."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from gpuiso.errors import BadInput, NotPermitted

__all__ = ["write_page"]


def write_page(file: str, content: str) -> None:
    """``content`` at ``file``; a regular file of that name is replaced in one step, anything else is left alone.

    :raises BadInput: it is a directory, a link, a device or the like, or cannot be written there.
    :raises NotPermitted: not permitted to write there.
    """
    target = Path(file)
    try:
        mode = target.lstat().st_mode
    except FileNotFoundError:
        mode = stat.S_IFREG
    except (OSError, ValueError) as error:
        raise BadInput(f"cannot be written: {getattr(error, 'strerror', error)}", file=file) from error
    if not stat.S_ISREG(mode):
        raise BadInput("is not a regular file, and is not overwritten", file=file)
    try:
        _replace(target, content)
    except PermissionError as error:
        raise NotPermitted(f"{file}: not permitted to write it") from error
    except OSError as error:
        raise BadInput(f"cannot be written: {error.strerror}", file=file) from error


def _replace(target: Path, content: str) -> None:
    fd, name = tempfile.mkstemp(prefix=".gpuiso-", suffix=".html", dir=target.parent)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as stream:
            stream.write(content)
            stream.flush()
            os.fchmod(stream.fileno(), 0o666 & ~_umask())
            os.fsync(stream.fileno())
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
