# SPDX-License-Identifier: Apache-2.0
"""``gpuiso rules check``: is a policy right?"""

from __future__ import annotations

from typing import Annotated

import typer

from gpuiso.cli.rules.source import read_source

__all__ = ["check"]


def check(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A policy or a file of rules; - is standard input.")],
) -> None:
    """Check a policy. Exit 2 if it cannot be used."""
    from gpuiso.policy.parse import parse_rules

    rules = parse_rules(read_source(file), file=file)
    print(f"{file}: {len(rules)} rules")
