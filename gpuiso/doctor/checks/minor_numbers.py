# SPDX-License-Identifier: Apache-2.0
"""Hosts on which the number of /dev/nvidiaN is not the GPU's index, and who takes one for the other."""

from __future__ import annotations

from collections.abc import Iterator

from gpuiso.doctor.finding import Evidence, Finding, Fix, Rule
from gpuiso.doctor.machine import Machine, Subject
from gpuiso.doctor.registry import machine_check, process_check
from gpuiso.gpu.model import Gpu
from gpuiso.gpu.visibility.tokens import items
from gpuiso.host.decimals import decimal

__all__: list[str] = []

INDEX_MINOR_MISMATCH = Rule(
    "GPU-INDEX-MINOR-MISMATCH",
    "info",
    "GPU indexes and node numbers differ on this host",
    "/dev/nvidiaN is not the GPU that nvidia-smi and NVIDIA_VISIBLE_DEVICES call N",
    ("https://github.com/guilbaults/slurm-job-exporter/issues/63", "https://slurm.schedmd.com/gres.html"),
)


def _differing(machine: Machine) -> list[Gpu]:
    return [gpu for gpu in machine.nvidia if gpu.minor is not None and gpu.minor != gpu.index]


def _information(gpu: Gpu) -> Evidence:
    says = f"Device Minor: {gpu.minor} (GPU {gpu.index} in PCI order, {gpu.uuid or 'UUID unknown'})"
    return Evidence(f"/proc/driver/nvidia/gpus/{gpu.pci_address}/information", says)


@machine_check(INDEX_MINOR_MISMATCH)
def index_is_not_minor(machine: Machine) -> Iterator[Finding]:
    """Says so where GPU N is not /dev/nvidiaN."""
    differing = _differing(machine)
    if not differing:
        return
    first = differing[0]
    yield INDEX_MINOR_MISMATCH.finding(
        f"GPU {first.index} in PCI order is /dev/nvidia{first.minor}: the number of a node is the driver's minor, not"
        " an index. A script that takes one for the other uses another GPU.",
        evidence=[_information(gpu) for gpu in differing],
        fix=[
            Fix(
                "Name GPUs by UUID; a UUID means the same everywhere",
                f"export CUDA_VISIBLE_DEVICES={first.uuid}" if first.uuid else None,
            )
        ],
    )


@process_check(INDEX_MINOR_MISMATCH)
def index_used_as_minor(subject: Subject) -> Iterator[Finding]:
    """A container that asked for GPUs by index and was given the nodes of that number."""
    words = [word.strip() for word in items(subject.env.get("NVIDIA_VISIBLE_DEVICES", ""))]
    gpus = subject.machine.nvidia
    numbers = {decimal(word) for word in words}
    if not numbers <= set(range(len(gpus))) or not _differing(subject.machine):
        return
    wanted = [gpu for gpu in gpus if gpu.index in numbers]
    given = [gpu for gpu in gpus if gpu.minor is not None and subject.stat(f"/dev/nvidia{gpu.minor}") is not None]
    if {gpu.minor for gpu in given} != numbers or given == wanted:
        return
    nodes = ", ".join(f"/dev/nvidia{gpu.minor}" for gpu in given)
    asked = " and ".join(f"GPU {gpu.index} ({gpu.uuid})" for gpu in wanted)
    got = " and ".join(f"GPU {gpu.index} ({gpu.uuid})" for gpu in given)
    yield INDEX_MINOR_MISMATCH.finding(
        f"{subject.comm} (pid {subject.pid}) asked for {asked} and was given {nodes}, which is {got}: an index was"
        " taken for the number of a node.",
        severity="warning",
        title="A GPU index was taken for the number of a node",
        evidence=[
            subject.environ_evidence("NVIDIA_VISIBLE_DEVICES"),
            *(Evidence(f"/proc/{subject.pid}/root/dev/nvidia{gpu.minor}", "exists") for gpu in given),
            *(_information(gpu) for gpu in given),
        ],
        fix=[
            Fix(
                "Start the container again with GPUs requested by UUID (--device nvidia.com/gpu=UUID, or"
                f" NVIDIA_VISIBLE_DEVICES={','.join(gpu.uuid or str(gpu.index) for gpu in wanted)})"
            )
        ],
        target=subject.target,
    )
