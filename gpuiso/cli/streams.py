# SPDX-License-Identifier: Apache-2.0
"""Standard output and standard error as the command line needs them.

Whatever can become of them (closed, full, without a reader, of an encoding that lacks a character) ends in an exit code
of its own, and never in Python's 1, which means "findings" here.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import select
import sys
from collections.abc import Iterator
from typing import IO, Any

__all__ = ["OutputFailed", "ReaderGone", "standard_streams"]


class OutputFailed(Exception):
    """Standard output cannot be written; ``why`` is the reason in words."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class ReaderGone(Exception):
    """Who read our output (head, less) went away."""


@contextlib.contextmanager
def standard_streams() -> Iterator[None]:
    """Within it ``sys.stdout`` raises OutputFailed and ReaderGone, once each, and ``sys.stderr`` nothing at all.

    Characters that the encoding lacks are written as Python writes them (``\\xe9``). Streams that somebody else put
    there, as tests do, stay. A descriptor of the three that is closed is taken, so that no file gets its number.
    """
    _take_closed_descriptors()
    before = (sys.stdin, sys.stdout, sys.stderr)
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.BufferedReader(_NoInput()))
    if sys.stdout is sys.__stdout__:
        sys.stdout = _text(_Closed() if sys.stdout is None else _Output(1, "w", closefd=False), before[1])
    if sys.stderr is sys.__stderr__:
        sys.stderr = _text(_Silent() if sys.stderr is None else _Errors(2, "w", closefd=False), before[2])
    try:
        yield
    finally:
        sys.stdin, sys.stdout, sys.stderr = before


def _take_closed_descriptors() -> None:
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number: this one


def _text(raw: io.RawIOBase, like: IO[str] | None) -> io.TextIOWrapper:
    """A text stream on ``raw`` with the encoding and buffering of another."""
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=getattr(like, "encoding", None) or "utf-8",
        errors="backslashreplace",
        line_buffering=bool(getattr(like, "line_buffering", False)),
        write_through=bool(getattr(like, "write_through", False)),
    )


class _Output(io.FileIO):
    """A descriptor whose failure is told once. What is still buffered then is dropped."""

    failed = False
    _sent = b""

    def write(self, data: Any) -> int:
        if self.failed:
            return len(data)
        if self._sent:
            sent, self._sent = self._sent, b""
            if bytes(data[: len(sent)]) == sent:
                return len(sent)
        try:
            while (written := super().write(data)) is None:
                select.select((), (self,), ())  # somebody made it non-blocking
        except OSError as error:
            self.failed = True
            return self.fail(error, len(data))
        except BaseException:
            # A signal's, raised when the call had returned: the buffer would hand the same bytes over again.
            self._sent = bytes(data)
            raise
        return written

    def fail(self, error: OSError, length: int) -> int:
        if isinstance(error, BrokenPipeError):
            raise ReaderGone from error
        raise OutputFailed(error.strerror or str(error)) from error


class _Errors(_Output):
    """The same for standard error, of whose failure nobody could be told."""

    def fail(self, error: OSError, length: int) -> int:
        return length


class _NoInput(io.RawIOBase):
    """A standard input that was closed when we were started."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))


class _Closed(io.RawIOBase):
    """A standard output that was closed when we were started."""

    failed = False

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if not self.failed:
            self.failed = True
            raise OutputFailed(os.strerror(errno.EBADF))
        return len(data)


class _Silent(io.RawIOBase):
    """A standard error that was closed when we were started."""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return len(data)
