# SPDX-License-Identifier: Apache-2.0
"""Programs that only read, run in a child with a deadline.

A driver that hangs puts whoever asks it into uninterruptible sleep, where not even SIGKILL is seen before the
driver returns. So nothing here waits for a child without a limit: at the deadline it is killed, and if that does
not end it, it is left behind.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping, Sequence

from gpuiso.host.abandon import end
from gpuiso.host.protocol import CommandResult

__all__ = ["Child"]


class Child:
    """A running child. ``argv[0]`` is looked up in PATH unless it holds a slash.

    :raises FileNotFoundError: no such program.
    """

    def __init__(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> None:
        self.argv = tuple(argv)
        self._started = time.monotonic()
        self._process = subprocess.Popen(
            self.argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(env) if env is not None else None,
            start_new_session=True,
        )

    def result(self, timeout: float) -> CommandResult:
        """What it printed, ``timeout`` seconds after its start at the latest.

        At the deadline its whole session is killed; output received by then is lost.
        """
        left = max(0.0, self._started + timeout - time.monotonic())
        try:
            stdout, stderr = self._process.communicate(timeout=left)
        except subprocess.TimeoutExpired:
            end(self._process, session=True)
            return self._done(None, b"", b"")
        return self._done(self._process.returncode, stdout, stderr)

    def _done(self, status: int | None, stdout: bytes, stderr: bytes) -> CommandResult:
        return CommandResult(
            argv=self.argv,
            exit=status,
            stdout=stdout.decode("utf-8", "replace"),
            stderr=stderr.decode("utf-8", "replace"),
            seconds=time.monotonic() - self._started,
            timed_out=status is None,
        )
