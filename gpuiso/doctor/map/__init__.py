# SPDX-License-Identifier: Apache-2.0
"""Workloads × GPUs: who may open, selects, has open and fills which GPU. A pure function of a host."""

from __future__ import annotations

from gpuiso.doctor.map.build import build_map
from gpuiso.doctor.map.model import Cell, Column, GpuMap, Workload

__all__ = ["Cell", "Column", "GpuMap", "Workload", "build_map"]
