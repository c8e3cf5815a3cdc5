# SPDX-License-Identifier: Apache-2.0
"""Numbers of the CUDA driver's checkpoint interface, by name (cuda.h, CUresult and CUprocessState)."""

from __future__ import annotations

import enum

__all__ = ["ProcessState", "describe_failure", "result_name"]


class ProcessState(enum.IntEnum):
    """CUprocessState. The last two exist since CUDA 13.3."""

    RUNNING = 0
    LOCKED = 1
    CHECKPOINTED = 2
    FAILED = 3
    CHECKPOINTING = 4
    RESTORING = 5


NOT_INITIALIZED = 3
NOT_READY = 600

_NAMES = {
    0: "CUDA_SUCCESS",
    1: "CUDA_ERROR_INVALID_VALUE",
    2: "CUDA_ERROR_OUT_OF_MEMORY",
    3: "CUDA_ERROR_NOT_INITIALIZED",
    4: "CUDA_ERROR_DEINITIALIZED",
    34: "CUDA_ERROR_STUB_LIBRARY",
    46: "CUDA_ERROR_DEVICE_UNAVAILABLE",
    100: "CUDA_ERROR_NO_DEVICE",
    101: "CUDA_ERROR_INVALID_DEVICE",
    201: "CUDA_ERROR_INVALID_CONTEXT",
    304: "CUDA_ERROR_OPERATING_SYSTEM",
    401: "CUDA_ERROR_ILLEGAL_STATE",
    500: "CUDA_ERROR_NOT_FOUND",
    600: "CUDA_ERROR_NOT_READY",
    800: "CUDA_ERROR_NOT_PERMITTED",
    801: "CUDA_ERROR_NOT_SUPPORTED",
    802: "CUDA_ERROR_SYSTEM_NOT_READY",
    803: "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
    804: "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
    805: "CUDA_ERROR_MPS_CONNECTION_FAILED",
    999: "CUDA_ERROR_UNKNOWN",
}

# What a result means when this call gave it, as far as it was measured or NVIDIA said it.
_MEANINGS = {
    ("lock", 600): "work on the GPU did not end in time (a kernel that never ends cannot be checkpointed)",
    ("checkpoint", 801): "the driver cannot save something this process uses (managed memory, CUDA IPC)",
    ("checkpoint", 2): "no host memory for the copy, or the GPU is partitioned (MIG)",
    ("restore", 100): "the process may not open its GPU: the rules of its cgroup deny the node",
    ("restore", 801): "a GPU that the process had may not be opened by it",
    ("restore", 2): "too little memory is free on the GPU",
    ("restore", 1): "the GPU pairs do not name every GPU that the driver shows the process",
}
_GENERAL = {
    3: "it has no CUDA context",
    304: "the driver could not reach the process (privilege, /proc hidden)",
    401: "the process is in another state than expected",
    800: "not permitted (root or CAP_SYS_PTRACE is needed)",
    801: "this driver cannot do it",
}


def result_name(code: int) -> str:
    """``CUDA_ERROR_NOT_READY (600)``."""
    return f"{_NAMES.get(code, 'CUresult')} ({code})"


def describe_failure(call: str, code: int) -> str:
    """One clause: what a call's result says."""
    meaning = _MEANINGS.get((call, code)) or _GENERAL.get(code)
    return f"{call}: {result_name(code)}" + (f": {meaning}" if meaning else "")
