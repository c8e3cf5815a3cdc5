# SPDX-License-Identifier: Apache-2.0
"""``gpuiso recover``: finish or undo what a crash left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from gpuiso.cli.render.objects import print_object
from gpuiso.cli.render.plain import plain
from gpuiso.errors import NotUndone

__all__ = ["recover"]


def recover(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> int:
    """Put right what a crash or a kill -9 interrupted.

    Changes that were under way are undone, and removals finished. That goes for rules and for processes whose GPUs were
    being reclaimed or restored.

    Safe at any time and any number of times: a change that is under way is waited for. Every verb that changes
    something does the same before it begins.

    \b
    Examples:
      gpuiso recover
      gpuiso recover --json

    \b
    Exit codes: 0 done, or nothing to do; 3 not permitted; 6 a change under way does not end; 8 something could not be
    put right (named).
    """
    from gpuiso.apply.calls import Calls
    from gpuiso.apply.recover import recover as put_right
    from gpuiso.apply.state import State
    from gpuiso.host import open_host
    from gpuiso.reclaim.live import recover_here

    done: list[str] = []
    left: list[NotUndone] = []
    parts: tuple[Callable[[], list[str]], ...] = (
        lambda: put_right(State(), Calls()),
        lambda: recover_here(open_host(None)),
    )
    for part in parts:
        try:
            done += part()
        except NotUndone as error:
            left.append(error)
    if left:
        raise NotUndone("; ".join(error.message for error in left), hint=left[0].hint)
    if as_json:
        print_object({"gpuiso": "recover/1", "done": done})
        return 0
    for line in done or ["nothing to recover"]:
        print(plain(line))
    return 0
