# SPDX-License-Identifier: Apache-2.0
"""How much memory each process holds on each GPU, asked again and again of one NVML child.

:meth:`gpuiso.host.protocol.Host.nvml` is a snapshot for a report. Who takes memory away or gives it back must see it
move, in milliseconds: here the library stays loaded, in a child, because a hung driver must not hang its reader.
"""

from __future__ import annotations

import importlib.util
import json
import os
import select
import subprocess
import sys
import time
from dataclasses import dataclass
from types import TracebackType

from gpuiso.errors import Unknown
from gpuiso.host import gpu_memory_child
from gpuiso.host.abandon import leave
from gpuiso.host.nvml import cannot_start

__all__ = ["GpuMemory", "GpuMemoryReader"]


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """One GPU: ``total`` and ``used`` in bytes, and bytes by pid (None where NVML does not tell how much)."""

    uuid: str
    total: int
    used: int
    processes: dict[int, int | None]


class GpuMemoryReader:
    """A running child; close it, or use it as a context manager."""

    def __init__(self, program: str = gpu_memory_child.__file__) -> None:
        spec = importlib.util.find_spec("pynvml")
        if spec is None or spec.origin is None:
            raise Unknown("NVML", "the Python module pynvml is not installed", hint="pip install nvidia-ml-py")
        argv = [sys.executable, "-I", "-S", "-W", "ignore", program, os.path.dirname(spec.origin)]
        try:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            raise cannot_start(error) from error
        self._pending = b""
        self._owed = 0  # answers that were asked for and not waited for

    @property
    def pid(self) -> int:
        """The child's pid: it has the control node open."""
        return self._process.pid

    def read(self, timeout: float = 5.0) -> tuple[GpuMemory, ...]:
        """Every GPU, now.

        :raises Unknown: NVML failed, or did not answer in ``timeout`` seconds.
        """
        if self._process.stdin is None or self._process.stdin.closed:
            raise Unknown("NVML", "its reader was closed")
        try:
            os.write(self._process.stdin.fileno(), b"\n")
        except BrokenPipeError:
            pass  # it said why before it ended
        self._owed += 1
        limit = time.monotonic() + timeout
        line = b""
        while self._owed:
            line = self._line(limit, timeout)
            self._owed -= 1
        answer = json.loads(line)
        if "error" in answer:
            raise Unknown("NVML", answer["error"])
        return tuple(
            GpuMemory(gpu["uuid"], gpu["total"], gpu["used"], {int(pid): used for pid, used in gpu["processes"]})
            for gpu in answer["gpus"]
        )

    def _line(self, limit: float, timeout: float) -> bytes:
        out = self._process.stdout
        if out is None:
            raise Unknown("NVML", "its reader was closed")
        poll = select.poll()
        poll.register(out, select.POLLIN)
        while b"\n" not in self._pending:
            if not poll.poll(1000 * max(0.0, limit - time.monotonic())):
                raise Unknown("NVML", f"no answer within {timeout:g} s: the driver may hang")
            data = os.read(out.fileno(), 65536)
            if not data:
                self._owed = 0
                raise Unknown("NVML", "its reader ended")
            self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        return line

    def close(self) -> None:
        """Ends the child."""
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._process.wait(0.2)
        except subprocess.TimeoutExpired:
            leave(self._process)

    def __enter__(self) -> GpuMemoryReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
