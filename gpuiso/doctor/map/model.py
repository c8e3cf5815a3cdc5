# SPDX-License-Identifier: Apache-2.0
"""The map's values: GPUs across, workloads down, and what each cell says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from gpuiso.doctor.gates import Gate, Verdict
from gpuiso.doctor.machine import Machine
from gpuiso.gpu.model import Gpu, MigDevice

__all__ = ["SEVERITY", "Cell", "Column", "GpuMap", "Kind", "Member", "Missing", "State", "Stray", "Workload"]

Kind = Literal["container", "unit", "job", "cgroup", "process"]

State = Literal["lost", "leak", "kept", "use", "ready", "may", "unknown", "closed"]
"""What a cell amounts to.

``lost``: selected (or given to the container), but may not be opened · ``leak``: may be opened, though the workload
selects others · ``kept``: may not be opened any more, but is still open or holds memory · ``use``: open, or holds
memory · ``ready``: selected, may be opened · ``may``: may be opened, and nothing selects · ``unknown``: cannot be
known · ``closed``: may not be opened.
"""

#: From what stands out to what does not.
SEVERITY: tuple[State, ...] = ("lost", "leak", "kept", "unknown", "use", "ready", "may", "closed")


@dataclass(frozen=True, slots=True)
class Column:
    """A GPU or, of a GPU in MIG mode, a MIG device.

    ``id`` is short and unique (``0``, ``0:1/0``, ``amd:0``), ``nodes`` are the nodes of its own that must be opened,
    ``shared`` those that all GPUs of the vendor need.
    """

    id: str
    label: str
    gpu: Gpu
    mig: MigDevice | None
    nodes: tuple[str, ...]
    shared: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Member:
    """A process of a workload.

    ``cgroups`` are its cgroups by hierarchy, ``env`` the variables that select GPUs and ``holds`` the descriptors on
    GPU nodes, both None where that may not be read.
    """

    pid: int
    cgroups: Mapping[str, str]
    env: Mapping[str, str] | None
    holds: Mapping[str, int] | None
    comm: str = "?"


@dataclass(frozen=True, slots=True)
class Cell:
    """What one workload has to do with one GPU.

    ``may_open`` sums up all gates over all processes of the workload: ``allow`` if one of them may. ``gate`` is the
    one that decides where it is not ``allow``. ``selected`` is None where nothing selects, or where that is not known.
    ``open`` counts descriptors on the GPU's nodes, ``memory`` is in bytes; both None where not known. ``says`` is a
    sentence about what stands out, or None.
    """

    may_open: Verdict
    gate: Gate | None
    selected: bool | None
    open: int | None
    memory: int | None
    state: State
    says: str | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """Processes that belong together.

    ``name`` is what people call it, ``id`` the whole id of a container, ``cgroup`` its place in the cgroup tree.
    ``variables`` are those that select GPUs, each once. ``closed`` says which shared nodes cannot be opened, and why.
    """

    kind: Kind
    name: str
    id: str | None
    cgroup: str | None
    members: tuple[Member, ...]
    variables: tuple[tuple[str, str], ...]
    cells: tuple[Cell, ...]
    closed: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return f"{self.kind} {self.name}"

    @property
    def state(self) -> State:
        """What stands out most among its cells."""
        states = {cell.state for cell in self.cells}
        return next((state for state in SEVERITY if state in states), "closed")


@dataclass(frozen=True, slots=True)
class Stray:
    """GPU memory of a process that NVML names and nobody here knows, or that no column can be told for."""

    gpu: str
    pid: int
    memory: int | None


@dataclass(frozen=True, slots=True)
class Missing:
    """What could not be known, and why."""

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class GpuMap:
    """Workloads × GPUs, the most remarkable workloads first.

    ``left_out`` counts workloads that have nothing to do with GPUs. ``blind`` is why no process could be looked at at
    all: then an empty map says nothing.
    """

    machine: Machine
    columns: tuple[Column, ...]
    workloads: tuple[Workload, ...]
    strays: tuple[Stray, ...] = ()
    not_examined: tuple[Missing, ...] = ()
    left_out: int = 0
    blind: str | None = None
    counts: Counter[State] = field(init=False)

    def __post_init__(self) -> None:
        counted = Counter(cell.state for workload in self.workloads for cell in workload.cells)
        object.__setattr__(self, "counts", counted)

    @property
    def bad(self) -> bool:
        """Whether there is a leak or a lost GPU."""
        return bool(self.counts["leak"] or self.counts["lost"])
