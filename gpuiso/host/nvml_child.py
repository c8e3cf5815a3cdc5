# SPDX-License-Identifier: Apache-2.0
"""The program that asks NVML. Run as ``python -I -S nvml_child.py DIRECTORY-OF-PYNVML``; prints one JSON object.

The object has the form of a record's tools/nvml.json, or ``{"error": TEXT}``. A question that this driver or GPU does
not answer (NVML_ERROR_NOT_SUPPORTED, a missing symbol) is null. A GPU that NVML counts but cannot open stands as
``{"index": N, "error": TEXT}``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

_COMPUTE_MODES = {0: "Default", 1: "Exclusive_Thread", 2: "Prohibited", 3: "Exclusive_Process"}
_ON_OFF = {0: "Disabled", 1: "Enabled"}
_NVML_FI_DEV_GET_GPU_RECOVERY_ACTION = 230
_NO_INSTANCE = 0xFFFFFFFF
_MIB = 1 << 20


class Reader:
    """The questions. ``nvml`` is the module pynvml after nvmlInit."""

    def __init__(self, nvml: Any) -> None:
        self.nvml = nvml

    def ask(self, question: Callable[..., Any], *args: Any) -> Any:
        try:
            return question(*args)
        except self.nvml.NVMLError:
            return None

    def snapshot(self) -> dict[str, Any]:
        """All GPUs that this process may see; NVML leaves out one whose node it cannot open."""
        nvml = self.nvml
        cuda = self.ask(nvml.nvmlSystemGetCudaDriverVersion_v2)
        return {
            "driver_version": self.ask(nvml.nvmlSystemGetDriverVersion),
            "cuda_version": None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
            "gpus": [self.gpu(index) for index in range(self.ask(nvml.nvmlDeviceGetCount) or 0)],
        }

    def gpu(self, index: int) -> dict[str, Any]:
        nvml, ask = self.nvml, self.ask
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
        except nvml.NVMLError as error:
            return {"index": index, "error": str(error)}
        try:
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        except (nvml.NVMLError_GpuIsLost, nvml.NVMLError_ResetRequired) as error:
            return {"index": index, "error": str(error)}
        except nvml.NVMLError:
            memory = None
        mig = ask(nvml.nvmlDeviceGetMigMode, handle)
        ecc = ask(nvml.nvmlDeviceGetEccMode, handle)
        pci = ask(nvml.nvmlDeviceGetPciInfo, handle)
        return {
            "index": index,
            "uuid": ask(nvml.nvmlDeviceGetUUID, handle),
            "name": ask(nvml.nvmlDeviceGetName, handle),
            "pci_bus_id": None if pci is None else pci.busId,
            "minor": ask(nvml.nvmlDeviceGetMinorNumber, handle),
            "memory_total_mib": None if memory is None else memory.total // _MIB,
            "memory_used_mib": None if memory is None else memory.used // _MIB,
            "mig_mode": None if mig is None else _ON_OFF.get(mig[0]),
            "compute_mode": _COMPUTE_MODES.get(ask(nvml.nvmlDeviceGetComputeMode, handle)),
            "persistence_mode": _ON_OFF.get(ask(nvml.nvmlDeviceGetPersistenceMode, handle)),
            "ecc_mode": None if ecc is None else _ON_OFF.get(ecc[0]),
            "recovery_action": self.recovery_action(handle),
            "processes": self.processes(handle),
            "mig_devices": self.mig_devices(handle) if mig is not None and mig[0] == 1 else [],
        }

    def recovery_action(self, handle: Any) -> int | None:
        values = self.ask(self.nvml.nvmlDeviceGetFieldValues, handle, [_NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
        if not values or values[0].nvmlReturn != self.nvml.NVML_SUCCESS:
            return None
        return int(values[0].value.uiVal)

    def processes(self, handle: Any) -> list[dict[str, Any]]:
        nvml = self.nvml
        kinds = (
            ("C", nvml.nvmlDeviceGetComputeRunningProcesses),
            ("G", nvml.nvmlDeviceGetGraphicsRunningProcesses),
        )
        return [
            {
                "pid": process.pid,
                "type": kind,
                "used_memory_mib": None if process.usedGpuMemory is None else process.usedGpuMemory // _MIB,
                **_instance(process),
            }
            for kind, question in kinds
            for process in self.ask(question, handle) or []
        ]

    def mig_devices(self, handle: Any) -> list[dict[str, Any]]:
        nvml, ask = self.nvml, self.ask
        found = []
        for index in range(ask(nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
            device = ask(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)
            if device is None:
                continue  # an empty slot
            attributes = ask(nvml.nvmlDeviceGetAttributes_v2, device)
            found.append(
                {
                    "uuid": ask(nvml.nvmlDeviceGetUUID, device),
                    "gpu_instance": ask(nvml.nvmlDeviceGetGpuInstanceId, device),
                    "compute_instance": ask(nvml.nvmlDeviceGetComputeInstanceId, device),
                    "profile": None if attributes is None else _profile(attributes),
                }
            )
        return found


def _instance(process: Any) -> dict[str, int]:
    """The MIG instance a process works on, nothing on a whole GPU."""
    names = {"gpu_instance": "gpuInstanceId", "compute_instance": "computeInstanceId"}
    found = {name: getattr(process, attribute, None) for name, attribute in names.items()}
    return {name: number for name, number in found.items() if number not in (None, _NO_INSTANCE)}


def _profile(attributes: Any) -> str:
    """``1g.18gb`` as nvidia-smi names it: slices, then memory in GiB, rounded up."""
    gib = -(-attributes.memorySizeMB // 1024)
    prefix = ""
    if attributes.computeInstanceSliceCount != attributes.gpuInstanceSliceCount:
        prefix = f"{attributes.computeInstanceSliceCount}c."
    return f"{prefix}{attributes.gpuInstanceSliceCount}g.{gib}gb"


def main() -> None:
    sys.path.insert(0, sys.argv[1])
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_LibraryNotFound:
        print(json.dumps({"error": "library not found"}))
    except pynvml.NVMLError as error:
        print(json.dumps({"error": str(error)}))
    else:
        print(json.dumps(Reader(pynvml).snapshot()))


if __name__ == "__main__":
    main()
