# SPDX-License-Identifier: Apache-2.0
"""The console that people read: colour and the terminal's width on a terminal, plain text in a pipe."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import IO, TYPE_CHECKING

from gpuiso.cli.render.plain import plain

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["make_console"]

_PIPE_WIDTH = 120


def make_console(file: IO[str] | None = None) -> Console:
    """A console on ``file`` (standard output by default). NO_COLOR, TERM=dumb and COLUMNS are respected."""
    from rich.console import Console as RichConsole
    from rich.segment import Segment

    class SafeConsole(RichConsole):
        def on_broken_pipe(self) -> None:
            raise  # rich calls this while it handles BrokenPipeError; main() knows what to do

        def _render_buffer(self, buffer: Iterable[Segment]) -> str:
            # The last place where text can be told from the escape sequences that rich makes.
            return super()._render_buffer(s if s.control else Segment(plain(s.text), s.style) for s in buffer)

    stream = sys.stdout if file is None else file
    width = None if stream.isatty() or "COLUMNS" in os.environ else _PIPE_WIDTH
    return SafeConsole(file=stream, width=width, highlight=False, markup=False, emoji=False)
