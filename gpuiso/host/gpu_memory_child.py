# SPDX-License-Identifier: Apache-2.0
"""The program that asks NVML for memory again and again.

Run as ``python -I -S gpu_memory_child.py DIRECTORY-OF-PYNVML``. For each line on standard input it prints one JSON
object, ``{"gpus": [{"uuid", "total", "used", "processes": [[pid, bytes or null], …]}]}``, or ``{"error": TEXT}``. All
sizes are bytes. It ends with its input.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def gpu(nvml: Any, handle: Any) -> dict[str, Any]:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    processes: dict[int, int | None] = {}
    for question in (nvml.nvmlDeviceGetComputeRunningProcesses, nvml.nvmlDeviceGetGraphicsRunningProcesses):
        try:
            found = question(handle)
        except nvml.NVMLError:
            continue  # this kind of GPU or driver does not tell
        for process in found:
            processes[process.pid] = process.usedGpuMemory
    return {
        "uuid": nvml.nvmlDeviceGetUUID(handle),
        "total": memory.total,
        "used": memory.used,
        "processes": sorted(processes.items()),
    }


def snapshot(nvml: Any) -> dict[str, Any]:
    """Every GPU that NVML lets this process open."""
    found = []
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            found.append(gpu(nvml, nvml.nvmlDeviceGetHandleByIndex(index)))
        except nvml.NVMLError as error:
            if error.value not in (nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_NO_PERMISSION):
                raise
    return {"gpus": found}


def main() -> None:
    sys.path.insert(0, sys.argv[1])
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return
    for _ in sys.stdin:
        try:
            found = snapshot(pynvml)
        except pynvml.NVMLError as error:
            found = {"error": str(error)}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
