# SPDX-License-Identifier: Apache-2.0
"""The console that people read: colour and the terminal's width on a terminal, plain text in a pipe."""

from __future__ import annotations

import os
import sys
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["make_console"]

_PIPE_WIDTH = 120


def make_console(file: IO[str] | None = None) -> Console:
    """A console on ``file`` (standard output by default). NO_COLOR, TERM=dumb and COLUMNS are respected."""
    from rich.console import Console as RichConsole

    class PipeConsole(RichConsole):
        def on_broken_pipe(self) -> None:
            raise  # rich calls this while it handles BrokenPipeError; main() knows what to do

    stream = sys.stdout if file is None else file
    width = None if stream.isatty() or "COLUMNS" in os.environ else _PIPE_WIDTH
    return PipeConsole(file=stream, width=width, highlight=False, markup=False, emoji=False)
