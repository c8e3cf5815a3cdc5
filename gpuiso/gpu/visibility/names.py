# SPDX-License-Identifier: Apache-2.0
"""The environment variables that decide which GPUs a process or container gets."""

from __future__ import annotations

__all__ = ["VARIABLES"]

#: Variables that select GPUs, by the one who reads them.
VARIABLES = {
    "CUDA_VISIBLE_DEVICES": "the CUDA driver, and HIP as an alias",
    "CUDA_DEVICE_ORDER": "the CUDA driver",
    "NVIDIA_VISIBLE_DEVICES": "NVIDIA's container runtime",
    "NVIDIA_DRIVER_CAPABILITIES": "NVIDIA's container runtime",
    "ROCR_VISIBLE_DEVICES": "AMD's ROCr",
    "HIP_VISIBLE_DEVICES": "AMD's HIP",
    "GPU_DEVICE_ORDINAL": "AMD's OpenCL",
    "ZE_AFFINITY_MASK": "Intel's Level Zero",
    "ZE_FLAT_DEVICE_HIERARCHY": "Intel's Level Zero",
    "ONEAPI_DEVICE_SELECTOR": "Intel's oneAPI",
}
