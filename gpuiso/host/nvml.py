# SPDX-License-Identifier: Apache-2.0
"""NVML's view of the GPUs, asked for in a child process: a hung driver must not hang its reader."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from typing import Any

from gpuiso.errors import Unknown
from gpuiso.host import nvml_child
from gpuiso.host.child import Child

__all__ = ["NvmlChild", "cannot_start"]


def cannot_start(error: OSError) -> Unknown:
    """Why the program that asks NVML does not run: it is Python's own, which was removed or may not be started."""
    return Unknown("NVML", f"its reader {sys.executable or 'python'} cannot be started: {error.strerror}")


class NvmlChild:
    """A child that loads libnvidia-ml, asks once and prints (see :mod:`gpuiso.host.nvml_child`)."""

    def __init__(self, program: str = nvml_child.__file__) -> None:
        self._child: Child | None = None
        self._answer: dict[str, Any] | None = None
        self._error: Unknown | None = None
        spec = importlib.util.find_spec("pynvml")
        if spec is None or spec.origin is None:
            self._error = Unknown("NVML", "the Python module pynvml is not installed", hint="pip install nvidia-ml-py")
            return
        try:
            # -S: the child needs one module, not the .pth files of a whole site directory.
            self._child = Child([sys.executable, "-I", "-S", "-W", "ignore", program, os.path.dirname(spec.origin)])
        except OSError as error:
            self._error = cannot_start(error)

    def answer(self, timeout: float) -> dict[str, Any] | None:
        """The snapshot, in the form of a record's tools/nvml.json; None if there is no NVML library.

        :raises Unknown: it did not answer in ``timeout`` seconds after the child's start, or NVML failed.
        """
        if self._error is not None:
            raise self._error
        if self._answer is None and self._child is not None:
            result = self._child.result(timeout)
            if result.timed_out:
                self._error = Unknown("NVML", f"no answer within {timeout:g} s: the driver may hang")
                raise self._error
            try:
                self._answer = json.loads(result.stdout)
            except ValueError:
                last = (result.stderr.strip().splitlines() or ["no output"])[-1]
                self._error = Unknown("NVML", f"its reader failed (exit {result.exit}): {last}")
                raise self._error from None
        if self._answer is None or self._answer.get("error") == "library not found":
            return None
        if "error" in self._answer:
            raise Unknown("NVML", self._answer["error"])
        return self._answer
