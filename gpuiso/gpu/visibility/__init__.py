# SPDX-License-Identifier: Apache-2.0
"""Which GPUs a process sees: what the vendors' libraries make of the variables, as pure functions."""

from __future__ import annotations

from gpuiso.gpu.visibility.cuda import CudaList, cuda_visible
from gpuiso.gpu.visibility.model import Kind, Reason, Token, Visibility, VisibleGpu

__all__ = ["CudaList", "Kind", "Reason", "Token", "Visibility", "VisibleGpu", "cuda_visible"]
