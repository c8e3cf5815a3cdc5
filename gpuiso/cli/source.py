# SPDX-License-Identifier: Apache-2.0
"""The text of a file that the command line names, which may be a pipe."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable

from gpuiso.apply.waiting import tell_waits
from gpuiso.errors import BadInput, NotFound, NotPermitted, UsageError

__all__ = ["MOST_BYTES", "MOST_OF_CONFIG", "read_source"]

MOST_BYTES = 1 << 20
"""A policy larger than this is a mistake."""
MOST_OF_CONFIG = 16 << 20
"""The same for an OCI configuration or a seccomp profile."""
_SILENCE = 1.0  # seconds of waiting before it is said


def read_source(file: str, most: int = MOST_BYTES, opener: Callable[[str, int], int] = os.open) -> str:
    """The text of ``file``, of standard input for ``-``.

    That a file lets one wait, as a FIFO does that nobody writes to, is said after a second. ``opener`` is given the
    path and the flags of open(2), and returns a descriptor.

    :raises NotFound: no such file.
    :raises UsageError: a directory, or it cannot be read.
    :raises NotPermitted: it may not be read.
    :raises BadInput: larger than ``most`` bytes, or not UTF-8.
    """
    try:
        data = sys.stdin.buffer.read(most + 1) if file == "-" else _read(file, most + 1, opener)
    except FileNotFoundError as error:
        raise NotFound(f"{file}: {error.strerror}") from error
    except PermissionError as error:
        raise NotPermitted(f"{file}: {error.strerror}") from error
    except (OSError, ValueError) as error:
        raise UsageError(f"{file}: {getattr(error, 'strerror', None) or error}") from error
    if len(data) > most:
        raise BadInput(f"larger than {most >> 20} MiB", file=file)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        start = data.rfind(b"\n", 0, error.start) + 1
        column = len(data[start : error.start].decode("utf-8-sig", "replace")) + 1
        raise BadInput(f"byte {data[error.start]:#04x} is not UTF-8", file=file, line=line, column=column) from error


def _read(file: str, most: int, opener: Callable[[str, int], int]) -> bytes:
    """At most so many bytes."""
    # Not to wait in here: a FIFO is opened at once, and what is waited for can be told.
    fd = opener(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
    try:
        os.set_blocking(fd, True)
        data = b""
        began, tell = time.monotonic(), tell_waits.get()
        readable = select.poll()
        readable.register(fd, select.POLLIN)
        while len(data) < most:
            if not readable.poll(max(0.0, began + _SILENCE - time.monotonic()) * 1000):
                if tell is not None:
                    tell(f"waiting for {file}: somebody is to write to it, and to close it")
                    tell = None
                readable.poll()
            if not (more := os.read(fd, most - len(data))):
                break
            data += more
        return data
    finally:
        os.close(fd)
