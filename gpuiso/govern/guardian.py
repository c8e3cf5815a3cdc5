# SPDX-License-Identifier: Apache-2.0
"""The process that thaws when the governor cannot: killed, stopped, or stuck.

It holds the cgroup.freeze files open and reads the governor's heartbeat from a pipe. When the pipe ends, or nothing
comes for :data:`SILENCE` seconds, it writes 0 to all of them. It ignores SIGTERM and SIGINT, which a terminal or a
service manager sends to both at once; it ends when the pipe does.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Sequence

__all__ = ["SILENCE", "Guardian"]

SILENCE = 1.0  # seconds; a governed cgroup is never frozen longer than a period, which is at most one


class Guardian:
    """The guardian of ``files``, paths of cgroup.freeze. Call :meth:`beat` more often than SILENCE."""

    def __init__(self, files: Sequence[str]) -> None:
        self._files = tuple(files)
        self._start()

    def _start(self) -> None:
        descriptors = [os.open(path, os.O_WRONLY | os.O_CLOEXEC) for path in self._files]
        readable, self._pipe = os.pipe2(os.O_CLOEXEC)
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(self._pipe)
                watch(readable, descriptors)
            finally:
                os._exit(0)
        os.close(readable)
        for fd in descriptors:
            os.close(fd)

    def beat(self) -> None:
        """Says that the governor lives. A guardian that died is replaced."""
        try:
            os.write(self._pipe, b".")
        except BrokenPipeError:
            os.close(self._pipe)
            os.waitpid(self.pid, 0)
            self._start()

    def close(self) -> None:
        """Ends the guardian; it thaws on its way out."""
        os.close(self._pipe)
        os.waitpid(self.pid, 0)


def watch(readable: int, descriptors: Sequence[int]) -> None:
    """What the guardian does: returns when the pipe ends."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.setsid()
    while True:
        ready, _, _ = select.select([readable], [], [], SILENCE)
        if ready and os.read(readable, 1 << 12):
            continue
        for fd in descriptors:
            thaw(fd)
        if ready:
            return


def thaw(fd: int) -> None:
    """Thaws the cgroup of an open cgroup.freeze file; a cgroup that is gone needs none."""
    try:
        os.pwrite(fd, b"0", 0)
    except OSError:
        pass  # ENODEV: the cgroup was removed, and with it what was frozen
