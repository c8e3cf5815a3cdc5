# SPDX-License-Identifier: Apache-2.0
"""``gpuiso rules compile``: what do rules become?"""

from __future__ import annotations

from typing import Annotated

import typer

from gpuiso.cli.rules.source import read_source

__all__ = ["compile_policy"]


def compile_policy(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A policy or a file of rules; - is standard input.")],
) -> None:
    """Print the device program that a policy compiles to."""
    from gpuiso.devfilter.compile import compile_rules
    from gpuiso.devfilter.decode import listing
    from gpuiso.policy.parse import parse_rules

    print(listing(compile_rules(parse_rules(read_source(file), file=file))), end="")
