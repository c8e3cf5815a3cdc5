# SPDX-License-Identifier: Apache-2.0
"""The CUDA driver's checkpoint calls (cuCheckpointProcess*), made by one long-lived helper with a deadline a call.

Loading the driver and cuInit cost up to seconds, and each fresh caller pays again to attach to its target; a helper
that stays pays once. It is a process of its own because a call that hangs cannot be taken back: the client gives
up at the deadline, and the helper, alone, waits on and undoes (see :mod:`gpuiso.reclaim.cuda_child`).
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from gpuiso.errors import GpuisoError, NotSupported, TimedOut
from gpuiso.host.abandon import leave
from gpuiso.reclaim import cuda_child
from gpuiso.reclaim.cuda import ProcessState, result_name
from gpuiso.reclaim.target import TargetEnded

__all__ = ["LIBRARY", "Answer", "CheckpointHelper", "HelperDied"]

LIBRARY = "libcuda.so.1"
_START_DEADLINE = 60.0  # seconds: cuInit on a cold host with eight GPUs takes several
_TICK = 0.1  # seconds between two looks at progress
_AFTER_END = 2.0  # seconds a helper may take to notice that its target ended
_CUDA_GPU_PAIRS = 13000  # cuDriverGetVersion of the first driver that reads gpuPairs (R580)
_NEEDED = frozenset({"checkpoint", "lock", "restore", "state", "unlock"})


class HelperDied(GpuisoError):
    """The helper was killed in the middle of a call."""

    code = "helper-died"


@dataclass(frozen=True, slots=True)
class Answer:
    """A call's CUresult, the value it gave (a ProcessState) and how many seconds the call itself took."""

    code: int
    value: int | None
    seconds: float


class CheckpointHelper:
    """A running helper. Use it as a context manager: closing it ends the helper, which undoes what was not kept.

    ``library`` is a name for dlopen(3) or a path.

    :raises NotSupported: no such library, no GPU that the caller may use, or a driver before R570.
    :raises TimedOut: the driver did not start.
    """

    def __init__(self, library: str = LIBRARY, *, start_deadline: float = _START_DEADLINE) -> None:
        # Variables that select or hide GPUs are the caller's own business, not the target's.
        env = {name: value for name, value in os.environ.items() if not name.startswith(("CUDA_", "NVIDIA_"))}
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", cuda_child.__file__, library],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=env,
            start_new_session=True,
            bufsize=0,
        )
        self._pending = b""
        self._last = 0
        try:
            hello = self._line(start_deadline, None, None)
            self._check(hello, library)
        except BaseException:
            self.close()
            raise
        self.version = int(hello["version"])
        self.start_seconds = float(hello["seconds"])

    @staticmethod
    def _check(hello: dict[str, Any], library: str) -> None:
        if "error" in hello:
            raise NotSupported(f"the CUDA driver library cannot be loaded: {hello['error']}")
        if not set(hello["calls"]) >= _NEEDED:
            raise NotSupported(
                f"{library} has no checkpoint calls: the driver is older than R570",
                hint="--scope-only and --until term or kill work with any driver",
            )
        if hello["cuInit"] != 0:
            raise NotSupported(
                f"cuInit gave {result_name(hello['cuInit'])}: gpuiso itself may not use the GPUs here",
                hint="gpuiso doctor says why",
            )

    @property
    def pid(self) -> int:
        """The helper's own pid."""
        return self._process.pid

    @property
    def moves_gpus(self) -> bool:
        """Whether a restore can put a process onto other GPUs."""
        return self.version >= _CUDA_GPU_PAIRS

    def call(
        self,
        do: str,
        pid: int,
        *,
        deadline: float,
        pidfd: int | None = None,
        tick: Callable[[], None] | None = None,
        timeout_ms: int = 0,
        pairs: Sequence[tuple[str, str]] = (),
    ) -> Answer:
        """``state``, ``lock``, ``checkpoint``, ``restore``, ``unlock``, and two of the helper's own.

        ``back`` brings a process to RUNNING from any state; ``keep`` says that it may stay as it is when this client
        ends. ``timeout_ms`` is how long a lock waits for work on the GPU; ``pairs`` are for a restore, two UUIDs each,
        as 32 hexadecimal digits. ``tick`` is called every tenth of a second.

        :raises TimedOut: no answer in ``deadline`` seconds; the call may still run.
        :raises TargetEnded: the process ended (``pidfd`` tells, while the call runs, and the helper before it).
        :raises HelperDied: the helper is gone; what it left is not known.
        """
        self._last += 1
        request = {"id": self._last, "do": do, "pid": pid, "timeout_ms": timeout_ms, "pairs": pairs}
        try:
            os.write(self._stdin, json.dumps(request).encode() + b"\n")
        except OSError as error:
            raise HelperDied(f"the helper that speaks to the driver was killed before {do}") from error
        limit = time.monotonic() + deadline
        while True:
            reply = self._line(max(0.0, limit - time.monotonic()), pidfd, tick, what=do, pid=pid)
            if reply.get("id") == self._last:  # else: the answer to a call that was given up
                break
        if reply.get("gone"):
            raise TargetEnded(f"process {pid} ended")
        return Answer(int(reply["code"]), reply.get("value"), float(reply["seconds"]))

    def state(self, pid: int, *, deadline: float = 10.0, pidfd: int | None = None) -> tuple[int, ProcessState | None]:
        """The result of GetState and, if that is 0, the state."""
        answer = self.call("state", pid, deadline=deadline, pidfd=pidfd)
        return answer.code, ProcessState(answer.value) if answer.code == 0 and answer.value is not None else None

    @property
    def _stdin(self) -> int:
        if self._process.stdin is None or self._process.stdin.closed:
            raise HelperDied("the helper that speaks to the driver was closed")
        return self._process.stdin.fileno()

    def _line(
        self,
        deadline: float,
        pidfd: int | None,
        tick: Callable[[], None] | None,
        *,
        what: str = "start",
        pid: int | None = None,
    ) -> dict[str, Any]:
        if self._process.stdout is None:
            raise HelperDied("the helper that speaks to the driver was closed")
        out = self._process.stdout.fileno()
        limit = time.monotonic() + deadline
        ended = False
        poll = select.poll()
        poll.register(out, select.POLLIN)
        if pidfd is not None:
            poll.register(pidfd, select.POLLIN)
        while b"\n" not in self._pending:
            left = limit - time.monotonic()
            if left <= 0:
                if ended:
                    self._process.kill()  # its target is gone: nothing is left that a kill could spoil
                    raise TargetEnded(f"process {pid} ended during {what}")
                raise TimedOut(f"{what} gave no answer in {deadline:.0f} s")
            ready = dict(poll.poll(1000 * min(left, _TICK)))
            if out in ready:
                data = os.read(out, 65536)
                if not data:
                    raise HelperDied(f"the helper that speaks to the driver was killed during {what}")
                self._pending += data
            elif pidfd in ready:
                poll.unregister(pidfd)
                ended = True
                limit = min(limit, time.monotonic() + _AFTER_END)
            if tick is not None:
                tick()
        line, _, self._pending = self._pending.partition(b"\n")
        reply: dict[str, Any] = json.loads(line)
        return reply

    def close(self, patience: float = 0.0) -> bool:
        """Ends the helper, which first undoes what was not kept; returns whether it ended within ``patience`` seconds.

        A helper that is still in a call is left to itself: it undoes when the call returns.
        """
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            leave(self._process)
            return False
        return True

    def __enter__(self) -> CheckpointHelper:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(patience=1.0)
