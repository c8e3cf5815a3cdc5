# SPDX-License-Identifier: Apache-2.0
"""The console that people read: colour and the terminal's width on a terminal, plain text in a pipe."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from typing import IO, TYPE_CHECKING

from gpuiso.cli.render.plain import plain

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["make_console"]

_PIPE_WIDTH = 120
_WIDTHS = (40, 500)
_TRAILING = re.compile(" +(?=\n)")
_ASCII = str.maketrans("✗●○·–—…→µ’", "x*o---.>u'")


def make_console(file: IO[str] | None = None) -> Console:
    """A console on ``file`` (standard output by default).

    NO_COLOR, TERM=dumb and COLUMNS are respected, COLUMNS between 40 and 500. Lines end without blanks.
    """
    from rich.console import Console as RichConsole
    from rich.segment import Segment

    class SafeConsole(RichConsole):
        def on_broken_pipe(self) -> None:
            raise  # rich calls this while it handles BrokenPipeError; main() knows what to do

        def _render_buffer(self, buffer: Iterable[Segment]) -> str:
            # The last place where text can be told from the escape sequences that rich makes.
            text = super()._render_buffer(s if s.control else Segment(plain(s.text), s.style) for s in buffer)
            return _TRAILING.sub("", text if self.encoding.startswith("utf") else text.translate(_ASCII))

    stream = sys.stdout if file is None else file
    # rich would take COLUMNS and LINES as they are: 0, and as many as memory has no room for.
    environ = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    console = SafeConsole(file=stream, highlight=False, markup=False, emoji=False, _environ=environ)
    wanted = os.environ.get("COLUMNS", "")
    if re.fullmatch("0*[1-9][0-9]*", wanted, re.ASCII):
        width = int(wanted) if len(wanted) < 10 else _WIDTHS[1]
    else:
        width = console.width if stream.isatty() and not wanted else _PIPE_WIDTH
    console.width = min(max(width, _WIDTHS[0]), _WIDTHS[1])
    return console
