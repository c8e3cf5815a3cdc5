# SPDX-License-Identifier: Apache-2.0
"""``gpuiso rules``: device rules and limits, one module a verb."""

from __future__ import annotations

import typer

from gpuiso.cli.rules.apply import apply_policy
from gpuiso.cli.rules.check import check
from gpuiso.cli.rules.compile import compile_policy
from gpuiso.cli.rules.remove import remove_rules
from gpuiso.cli.rules.show import show_rules
from gpuiso.cli.rules.unit import unit_rules

__all__ = ["app"]

app = typer.Typer(
    name="rules",
    no_args_is_help=True,
    help="Check, compile, apply, show and remove device rules and limits.",
)
app.command("check")(check)
app.command("compile")(compile_policy)
app.command("apply")(apply_policy)
app.command("show")(show_rules)
app.command("remove")(remove_rules)
app.command("unit")(unit_rules)
