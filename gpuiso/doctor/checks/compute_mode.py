# SPDX-License-Identifier: Apache-2.0
"""GPUs whose compute mode lets one process in, or none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpuiso.doctor.checks.cuda_words import gpu_name, select_fix
from gpuiso.doctor.checks.gpu_state import nvml_entry
from gpuiso.doctor.finding import Evidence, Finding, Fix, Rule, Severity
from gpuiso.doctor.machine import Subject
from gpuiso.doctor.registry import process_check
from gpuiso.gpu.model import Gpu
from gpuiso.host import process

__all__: list[str] = []

COMPUTE_EXCLUSIVE = Rule(
    "GPU-COMPUTE-EXCLUSIVE",
    "error",
    "A GPU's compute mode keeps the process out",
    "a GPU's compute mode is Prohibited, or it is Exclusive_Process and another process has the GPU (CUDA error 46)",
    (
        "https://github.com/tensorflow/tensorflow/issues/526",
        "https://github.com/NVIDIA/DIGITS/issues/2005",
        "https://docs.nvidia.com/cuda/cuda-programming-guide/index.html",
    ),
)

_RESTRICTED = frozenset({"Exclusive_Process", "Exclusive_Thread", "Prohibited"})
_MPS = "nvidia-cuda-mps"  # comm of nvidia-cuda-mps-server, cut at 15 bytes


@dataclass(frozen=True, slots=True)
class _Closed:
    """A GPU that the process cannot compute on. ``owners`` are the processes that have it, none if prohibited."""

    gpu: Gpu
    owners: tuple[int, ...]


def _closed(subject: Subject, gpu: Gpu) -> _Closed | None:
    if gpu.compute_mode == "Prohibited":
        return _Closed(gpu, ())
    listed = nvml_entry(subject.machine, gpu).get("processes", ())
    owners = tuple(entry["pid"] for entry in listed if entry.get("type", "C") == "C")
    if not owners or subject.pid in owners:
        return None
    if any(process.command_name(subject.host, pid).startswith(_MPS) for pid in owners):
        return None  # clients of MPS share the context of its server
    return _Closed(gpu, owners)


def _tries(subject: Subject) -> bool:
    """Whether a process nobody asked for tries to use a GPU: it has driver nodes open, and none of a GPU."""
    if subject.asked:
        return True
    gpu_nodes = {gpu.node.path for gpu in subject.machine.nvidia if gpu.node is not None}
    return "/dev/nvidia-uvm" in subject.holds and not gpu_nodes & subject.holds.keys()


@process_check(COMPUTE_EXCLUSIVE)
def exclusive(subject: Subject) -> Iterator[Finding]:
    """Of the GPUs that CUDA shows to the process, those it cannot compute on."""
    gpus = subject.machine.nvidia
    if not any(gpu.compute_mode in _RESTRICTED for gpu in gpus) or not _tries(subject):
        return
    seen = [gpus[visible.physical] for visible in subject.visibility.gpus]
    closed = [found for gpu in seen if gpu.compute_mode in _RESTRICTED and (found := _closed(subject, gpu)) is not None]
    if closed and not any(gpu.node is not None and gpu.node.path in subject.holds for gpu in seen):
        yield _finding(subject, seen, closed)


def _finding(subject: Subject, seen: Sequence[Gpu], closed: Sequence[_Closed]) -> Finding:
    free = [gpu for gpu in seen if all(gpu is not one.gpu for one in closed)]
    parts = []
    for one in closed:
        why = f"is in compute mode {one.gpu.compute_mode}"
        if one.owners:
            names = ", ".join(f"{process.command_name(subject.host, pid)} (pid {pid})" for pid in one.owners)
            why += f", and {names} has it"
        parts.append(f"{gpu_name(one.gpu)} {why}")
    cause = f"{'; '.join(parts)}: there CUDA gives {subject.comm} (pid {subject.pid}) error 46 (device unavailable)."
    severity: Severity = "warning" if free else "error"
    first = closed[0].gpu
    fix = []
    if free:
        fix.append(select_fix(subject, free, "Use a GPU that is free"))
    fix.append(
        Fix(
            "Let several processes share the GPU; ask first, as an administrator may have set the mode on purpose",
            f"sudo nvidia-smi -i {first.uuid or first.pci_address} -c DEFAULT",
        )
    )
    return COMPUTE_EXCLUSIVE.finding(
        cause,
        evidence=[
            *(Evidence("NVML", f"GPU {one.gpu.index}: compute mode {one.gpu.compute_mode}") for one in closed),
            *(
                Evidence("NVML", f"GPU {one.gpu.index}: compute processes {', '.join(map(str, one.owners))}")
                for one in closed
                if one.owners
            ),
        ],
        fix=fix,
        target=subject.target,
        severity=severity if subject.asked else "info",
    )
