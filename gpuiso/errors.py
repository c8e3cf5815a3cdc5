# SPDX-License-Identifier: Apache-2.0
"""The errors gpuiso raises, and the exit code each of them ends a command with.

::

    GpuisoError
    ├── UsageError        2  the command line asks for something that makes no sense
    ├── BadInput          2  a file or value handed in cannot be used; names file, line and value
    ├── NotPermitted      3  the caller lacks a privilege; says which
    ├── NotFound          4  no such pid, GPU, cgroup, container
    ├── NotSupported      5  this host, kernel or driver cannot do it
    ├── Unknown           5  the fact cannot be had from this host (not recorded, not permitted)
    ├── TimedOut          6  a deadline passed
    ├── FailedAndUndone   7  a change failed; what it had done was undone
    └── NotUndone         8  a change failed and could not be undone

Exit 0 is "fine, nothing found" and 1 is "findings", neither of which is an error.
"""

from __future__ import annotations

__all__ = [
    "BadInput",
    "FailedAndUndone",
    "GpuisoError",
    "NotFound",
    "NotPermitted",
    "NotSupported",
    "NotUndone",
    "TimedOut",
    "Unknown",
    "UsageError",
]


class GpuisoError(Exception):
    """Base of every error that a user of the library or the command line can meet.

    ``code`` is a stable word for programs, ``exit_code`` the status the command ends with,
    ``hint`` what to do about it (or None).
    """

    code = "failed"
    exit_code = 7

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(GpuisoError):
    code = "usage"
    exit_code = 2


class BadInput(GpuisoError):
    """A file or value cannot be used. The message starts with where: ``FILE:LINE:COLUMN: ...``."""

    code = "bad-input"
    exit_code = 2

    def __init__(
        self,
        message: str,
        *,
        file: str | None = None,
        line: int | None = None,
        column: int | None = None,
        hint: str | None = None,
    ) -> None:
        where = ":".join(str(part) for part in (file, line, column) if part is not None)
        super().__init__(f"{where}: {message}" if where else message, hint=hint)
        self.file = file
        self.line = line
        self.column = column


class NotPermitted(GpuisoError):
    code = "not-permitted"
    exit_code = 3


class NotFound(GpuisoError):
    code = "not-found"
    exit_code = 4


class NotSupported(GpuisoError):
    code = "not-supported"
    exit_code = 5


class Unknown(GpuisoError):
    """A fact that this host does not give: a record lacks it, or the caller may not read it.

    Distinct from absence, which is ``None``: what is unknown allows no conclusion.
    """

    code = "unknown"
    exit_code = 5

    def __init__(self, what: str, why: str, *, hint: str | None = None) -> None:
        super().__init__(f"{what}: {why}", hint=hint)
        self.what = what
        self.why = why


class TimedOut(GpuisoError):
    code = "timed-out"
    exit_code = 6


class FailedAndUndone(GpuisoError):
    code = "failed-and-undone"
    exit_code = 7


class NotUndone(GpuisoError):
    code = "not-undone"
    exit_code = 8
