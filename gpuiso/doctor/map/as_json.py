# SPDX-License-Identifier: Apache-2.0
"""The object of ``gpuiso map --json``."""

from __future__ import annotations

from typing import Any

from gpuiso.doctor.gates import Gate
from gpuiso.doctor.map.model import Cell, Column, GpuMap, Workload

__all__ = ["map_json"]


def map_json(found: GpuMap) -> dict[str, Any]:
    """Memory is in bytes; null is "not known", but for ``selected``, where it also stands for "nothing selects"."""
    return {
        "gpuiso": "map/1",
        "host": found.machine.host_json(),
        "leaks": found.counts["leak"],
        "lost": found.counts["lost"],
        "gpus": [_column(column) for column in found.columns],
        "workloads": [_workload(found, workload) for workload in found.workloads],
        "left_out": found.left_out,
        "unattributed": [{"gpu": s.gpu, "pid": s.pid, "memory": s.memory} for s in found.strays],
        "not_examined": [{"what": entry.what, "why": entry.why} for entry in found.not_examined],
    }


def _column(column: Column) -> dict[str, Any]:
    gpu, mig = column.gpu, column.mig
    return {
        "id": column.id,
        "label": column.label,
        "vendor": gpu.vendor,
        "index": gpu.index,
        "uuid": gpu.uuid,
        "name": gpu.name,
        "nodes": list(column.nodes),
        "memory_total": gpu.memory_total,
        "memory_used": gpu.memory_used,
        "mig": None
        if mig is None
        else {
            "uuid": mig.uuid,
            "gpu_instance": mig.gpu_instance,
            "compute_instance": mig.compute_instance,
            "profile": mig.profile,
        },
    }


def _workload(found: GpuMap, workload: Workload) -> dict[str, Any]:
    return {
        "kind": workload.kind,
        "name": workload.name,
        "id": workload.id,
        "cgroup": workload.cgroup,
        "processes": [{"pid": member.pid, "comm": member.comm} for member in workload.members],
        "variables": [{"name": name, "value": value} for name, value in workload.variables],
        "closed": list(workload.closed),
        "cells": [_cell(column, cell) for column, cell in zip(found.columns, workload.cells, strict=True)],
    }


def _cell(column: Column, cell: Cell) -> dict[str, Any]:
    return {
        "gpu": column.id,
        "state": cell.state,
        "may_open": cell.may_open,
        "gate": None if cell.gate is None else _gate(cell.gate),
        "selected": cell.selected,
        "open": cell.open,
        "memory": cell.memory,
        "says": cell.says,
    }


def _gate(gate: Gate) -> dict[str, Any]:
    found = gate.as_json()
    found.pop("rule", None)
    return found
