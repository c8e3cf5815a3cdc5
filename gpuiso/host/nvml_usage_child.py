# SPDX-License-Identifier: Apache-2.0
"""The program that samples GPU time by process. Run as ``python -I -S nvml_usage_child.py PYNVML-DIRECTORY SECONDS``.

Every SECONDS it prints one JSON line ``{"now": T, "samples": [[GPU, PID, UNTIL, PERCENT], ...]}``: the per cent of the
time up to UNTIL, since that process's sample before, in which kernels of the process ran
(nvmlDeviceGetProcessUtilization). T and UNTIL are seconds of CLOCK_MONOTONIC. It ends when nobody reads any more.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any


def samples(nvml: Any, handle: Any, since: int) -> list[Any]:
    """What is new since a timestamp of NVML; empty if nothing is."""
    try:
        return list(nvml.nvmlDeviceGetProcessUtilization(handle, since))
    except (nvml.NVMLError_NotFound, nvml.NVMLError_NotSupported):
        return []


def main() -> None:
    sys.path.insert(0, sys.argv[1])
    interval = float(sys.argv[2])
    import pynvml

    pynvml.nvmlInit()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    last = [int(time.time() * 1e6)] * len(handles)
    while True:
        found = []
        for gpu, handle in enumerate(handles):
            fresh = [sample for sample in samples(pynvml, handle, last[gpu]) if sample.timeStamp > last[gpu]]
            # NVML's clock is that of the day; ours must not jump when somebody sets it.
            shift = time.monotonic() - time.time()
            found += [(gpu, s.pid, round(s.timeStamp / 1e6 + shift, 4), s.smUtil) for s in fresh]
            last[gpu] = max([last[gpu], *(sample.timeStamp for sample in fresh)])
        line = json.dumps({"now": round(time.monotonic(), 4), "samples": found}) + "\n"
        try:
            os.write(1, line.encode())
        except BrokenPipeError:
            return
        time.sleep(interval)


if __name__ == "__main__":
    main()
