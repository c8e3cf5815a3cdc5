# SPDX-License-Identifier: Apache-2.0
"""Ending children without waiting for one that hangs in a driver, where not even SIGKILL is seen."""

from __future__ import annotations

import atexit
import os
import signal
import subprocess

__all__ = ["abandoned", "end", "leave"]

_GRACE = 0.2  # seconds: enough for an ordinary process to die of SIGKILL, on a busy machine too

#: Children that go on without us. Held so that their objects are not collected (and warned about) while they run.
abandoned: list[subprocess.Popen[bytes]] = []


def end(process: subprocess.Popen[bytes], *, session: bool = False) -> None:
    """Kills a child (with ``session``, all of the session it leads) and closes its pipes.

    One that does not die is left behind; it is reaped when it does, if that is before we end.
    """
    try:
        if session:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.send_signal(signal.SIGKILL)
    except ProcessLookupError:
        pass  # it ended just now
    _reap()
    try:
        process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        abandoned.append(process)
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def leave(process: subprocess.Popen[bytes]) -> None:
    """Lets a child go on by itself. It is reaped once it has ended, if that is before we end."""
    _reap()
    abandoned.append(process)


@atexit.register
def _reap() -> None:
    abandoned[:] = [process for process in abandoned if process.poll() is None]
