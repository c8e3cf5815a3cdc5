# SPDX-License-Identifier: Apache-2.0
"""The text of a policy that the command line names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gpuiso.cli.source import read_source

if TYPE_CHECKING:
    from gpuiso.host.protocol import Host
    from gpuiso.policy.resolve import ResolvedPolicy

__all__ = ["PolicyFile", "Record", "load_policy"]

PolicyFile = Annotated[
    str, typer.Argument(metavar="FILE", help="A policy (YAML or JSON) or a text of rules; - is standard input.")
]
Record = Annotated[
    str | None,
    typer.Option("--from", metavar="RECORD", help="Look devices up in a recorded host (a directory or .tar.gz)."),
]


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
