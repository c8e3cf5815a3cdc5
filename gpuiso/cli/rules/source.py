# SPDX-License-Identifier: Apache-2.0
"""The text of a policy that the command line names."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from gpuiso.errors import BadInput, NotFound, NotPermitted, UsageError

if TYPE_CHECKING:
    from gpuiso.host.protocol import Host
    from gpuiso.policy.resolve import ResolvedPolicy

__all__ = ["MOST_BYTES", "PolicyFile", "Record", "load_policy", "read_source"]

PolicyFile = Annotated[
    str, typer.Argument(metavar="FILE", help="A policy (YAML or JSON) or a text of rules; - is standard input.")
]
Record = Annotated[
    str | None,
    typer.Option("--from", metavar="RECORD", help="Look devices up in a recorded host (a directory or .tar.gz)."),
]

MOST_BYTES = 1 << 20
"""A policy larger than this is a mistake."""


def load_policy(file: str, host: Host) -> ResolvedPolicy:
    """The policy in ``file`` on this host.

    :raises BadPolicy: with everything that is wrong with it. Otherwise as read_source.
    """
    from gpuiso.policy.document import read_policy
    from gpuiso.policy.place import raise_errors
    from gpuiso.policy.resolve import read_resolved

    document, errors = read_policy(read_source(file), file=file)
    resolved, unresolved = read_resolved(document, host)
    raise_errors([*errors, *unresolved])
    return resolved


def read_source(file: str) -> str:
    """The text of ``file``, of standard input for ``-``.

    :raises NotFound: no such file.
    :raises UsageError: a directory, or it cannot be read.
    :raises NotPermitted: it may not be read.
    :raises BadInput: larger than MOST_BYTES, or not UTF-8.
    """
    try:
        if file == "-":
            data = sys.stdin.buffer.read(MOST_BYTES + 1)
        else:
            with open(file, "rb") as stream:
                data = stream.read(MOST_BYTES + 1)
    except FileNotFoundError as error:
        raise NotFound(f"{file}: {error.strerror}") from error
    except PermissionError as error:
        raise NotPermitted(f"{file}: {error.strerror}") from error
    except (OSError, ValueError) as error:
        raise UsageError(f"{file}: {getattr(error, 'strerror', None) or error}") from error
    if len(data) > MOST_BYTES:
        raise BadInput(f"larger than {MOST_BYTES >> 20} MiB", file=file)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        start = data.rfind(b"\n", 0, error.start) + 1
        column = len(data[start : error.start].decode("utf-8-sig", "replace")) + 1
        raise BadInput(f"byte {data[error.start]:#04x} is not UTF-8", file=file, line=line, column=column) from error
