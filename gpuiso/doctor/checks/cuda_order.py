# SPDX-License-Identifier: Apache-2.0
"""CUDA_DEVICE_ORDER: values that CUDA refuses, and numbers whose order nobody chose."""

from __future__ import annotations

from collections.abc import Iterator

from gpuiso.doctor.checks.cuda_words import CUDA_GUIDE, gpu_name, inherited, left_over, restart, select_fix
from gpuiso.doctor.finding import Evidence, Finding, Fix, Rule
from gpuiso.doctor.machine import Subject
from gpuiso.doctor.registry import process_check
from gpuiso.gpu.visibility.cuda import ORDER, ORDERS, VARIABLE, lex
from gpuiso.gpu.visibility.model import Kind
from gpuiso.gpu.visibility.tokens import items, quoted

__all__: list[str] = []

RULE = Rule(
    "GPU-CVD-ORDER",
    "warning",
    "The order of GPU numbers is not the one nvidia-smi shows",
    "Different GPU models are numbered fastest first unless CUDA_DEVICE_ORDER=PCI_BUS_ID; other values stop CUDA",
    (CUDA_GUIDE, "https://github.com/NVIDIA/nvidia-docker/issues/262"),
)


@process_check(RULE)
def refused(subject: Subject) -> Iterator[Finding]:
    """A value that is neither PCI_BUS_ID nor FASTEST_FIRST, lower case included: cuInit fails with 101."""
    order = subject.env.get(ORDER, "")
    if order in ORDERS or not subject.machine.nvidia or inherited(subject, ORDER):
        return
    yield RULE.finding(
        f"{ORDER}={quoted(order)} is neither PCI_BUS_ID nor FASTEST_FIRST (in capitals): cuInit fails with 101"
        " (invalid device) and no GPU is visible, whatever CUDA_VISIBLE_DEVICES says.",
        evidence=[subject.environ_evidence(ORDER)],
        fix=[Fix(f"Write it as CUDA reads it, {restart(subject)}", f"export {ORDER}=PCI_BUS_ID")],
        target=subject.target,
        severity="error",
        title="CUDA_DEVICE_ORDER has a value that CUDA refuses",
    )


@process_check(RULE)
def fastest_first(subject: Subject) -> Iterator[Finding]:
    """Numbers on a host of different models, with the order left to CUDA's default."""
    value = subject.env.get(VARIABLE)
    gpus = subject.machine.nvidia
    if value is None or subject.env.get(ORDER) or len({gpu.name for gpu in gpus if gpu.name}) < 2:
        return
    if not any(lex(0, text).kind is Kind.INDEX for text in items(value)):
        return
    left = left_over(subject)
    chosen = [gpus[gpu.physical] for gpu in subject.visibility.gpus]
    if len({gpu.name for gpu in left}) < 2 or not chosen or len(chosen) == len(left) or inherited(subject):
        return  # of equal GPUs, or of all of them, the order picks no wrong one
    yield RULE.finding(
        f"The GPUs differ and {ORDER} is not set, so CUDA counts the fastest first: {VARIABLE}={value} need not"
        f" select what nvidia-smi shows under these numbers, {', '.join(map(gpu_name, chosen))}.",
        evidence=[
            subject.environ_evidence(VARIABLE),
            subject.environ_evidence(ORDER),
            *(
                Evidence(
                    f"/proc/driver/nvidia/gpus/{gpu.pci_address}/information",
                    f"GPU {gpu.index}: {gpu.name or 'no name'}",
                )
                for gpu in left
            ),
        ],
        fix=[
            Fix(f"Count as nvidia-smi does, {restart(subject)}", f"export {ORDER}=PCI_BUS_ID"),
            select_fix(subject, chosen, "Or name by UUID what nvidia-smi shows under these numbers"),
        ],
        target=subject.target,
    )
