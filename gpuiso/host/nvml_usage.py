# SPDX-License-Identifier: Apache-2.0
"""GPU time by process, read from a child that samples NVML: the reader never waits for the driver.

Measured on an H200 with driver 580.159.04: a sample a process and GPU each 0.2 s, seen at most 0.06 s late, also for a
process that did nothing; the sum agrees with the kernels' own times within one point.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass

from gpuiso.errors import NotSupported
from gpuiso.host import nvml_usage_child
from gpuiso.host.abandon import end
from gpuiso.host.nvml import cannot_start

__all__ = ["UsageReader", "UsageSample"]

START = 10.0  # seconds; nvmlInit without persistence mode wakes every GPU
_MAX_LINE = 1 << 20


@dataclass(frozen=True, slots=True)
class UsageSample:
    """``percent`` of the time between this process's previous sample and ``until`` in which its kernels ran."""

    gpu: int
    pid: int
    until: float
    percent: int


class UsageReader:
    """The child and what it has said. ``program`` is another child for tests.

    :raises NotSupported: the Python module pynvml is not installed.
    :raises Unknown: the child cannot be started.
    """

    def __init__(self, interval: float = 0.05, program: str = nvml_usage_child.__file__) -> None:
        spec = importlib.util.find_spec("pynvml")
        if spec is None or spec.origin is None:
            raise NotSupported("GPU time cannot be measured: pynvml is not installed", hint="pip install nvidia-ml-py")
        self._argv = [sys.executable, "-I", "-S", "-W", "ignore", program, os.path.dirname(spec.origin), str(interval)]
        self._start()

    def _start(self) -> None:
        try:
            self._child = subprocess.Popen(
                self._argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
            )
        except OSError as error:
            raise cannot_start(error) from error
        self._buffer = b""
        self._started = time.monotonic()
        self._heard: float | None = None
        if self._child.stdout is not None:
            os.set_blocking(self._child.stdout.fileno(), False)

    def fileno(self) -> int:
        """The descriptor that becomes readable when there is news; for select."""
        if self._child.stdout is None:
            raise ValueError("the reader is closed")
        return self._child.stdout.fileno()

    def read(self) -> list[UsageSample]:
        """What came since the last call; never waits."""
        found: list[UsageSample] = []
        while True:
            try:
                chunk = os.read(self.fileno(), 1 << 16)
            except BlockingIOError:
                break
            if not chunk:
                break
            self._buffer = (self._buffer + chunk)[-_MAX_LINE:]
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            self._heard = time.monotonic()
            found += [UsageSample(gpu, pid, until, percent) for gpu, pid, until, percent in json.loads(line)["samples"]]
        return found

    def silent(self, seconds: float) -> bool:
        """Whether the child has said nothing for so long; it may take :data:`START` seconds to start."""
        if self._heard is None:
            return time.monotonic() - self._started > START
        return time.monotonic() - self._heard > seconds

    def restart(self) -> None:
        """Leaves a child that is silent or dead behind and starts another."""
        self.close()
        self._start()

    def close(self) -> None:
        """Ends the child; one that hangs in the driver is left behind."""
        end(self._child)
