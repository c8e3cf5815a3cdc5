# SPDX-License-Identifier: Apache-2.0
"""What the checks of CUDA's variables share: how they name GPUs, what they advise, when they stay silent."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from gpuiso.doctor.finding import Fix
from gpuiso.doctor.machine import Subject
from gpuiso.errors import NotFound, Unknown
from gpuiso.gpu.model import Gpu
from gpuiso.gpu.visibility.cuda import ORDER, VARIABLE
from gpuiso.gpu.visibility.model import Token
from gpuiso.host import process

__all__ = [
    "CUDA_GUIDE",
    "assignment",
    "gpu_name",
    "inherited",
    "left_over",
    "openable",
    "restart",
    "select_fix",
    "shown",
    "unset_fix",
]

CUDA_GUIDE = "https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html"


def gpu_name(gpu: Gpu) -> str:
    """``GPU 1 (GPU-2222…)``: the number nvidia-smi gives it on the host, and what stays true elsewhere."""
    number = f"GPU {gpu.index}" if gpu.index is not None else f"the GPU at {gpu.pci_address}"
    return number if gpu.uuid is None else f"{number} ({gpu.uuid})"


def shown(tokens: Iterable[Token], gpus: Sequence[Gpu]) -> str:
    """What a list still selects, in words."""
    chosen = [gpus[token.physical] for token in tokens if token.reason is None and token.physical is not None]
    if not chosen:
        return "CUDA finds no GPU (cuInit fails with 100)"
    return f"CUDA shows only {', '.join(map(gpu_name, chosen))}"


def left_over(subject: Subject) -> list[Gpu]:
    """The GPUs whose node is not certainly closed to the process, in the order in which CUDA counts them."""
    return [gpu for gpu in subject.machine.nvidia if gpu.node is None or gpu.node.path not in subject.denied]


def openable(subject: Subject) -> list[Gpu]:
    """The GPUs whose node the process may open, in the order in which CUDA counts them.

    :raises Unknown: for one of them it cannot be known.
    """
    left = left_over(subject)
    for gpu in left:
        answer = None if gpu.node is None else subject.doubtful.get(gpu.node.path)
        if answer is not None:
            raise Unknown(f"access of pid {subject.pid} to {answer.node}", answer.unknown_because or "")
    return left


def restart(subject: Subject) -> str:
    """How a new value gets into effect: CUDA reads its variables once, when it is initialised."""
    return f"and start {subject.comm} again"


def assignment(name: str, value: str, *, command: str = "export") -> str | None:
    """A shell line that sets a variable, whatever its value holds; None for a value that no line should carry."""
    return f"{command} {name}={shlex.quote(value)}" if value.isprintable() else None


def select_fix(subject: Subject, gpus: Sequence[Gpu], why: str) -> Fix:
    """Select GPUs by UUID, which stays true wherever the process runs."""
    uuids = [gpu.uuid for gpu in gpus if gpu.uuid is not None]
    if not uuids or len(uuids) < len(gpus):
        return Fix(f"{why}, {restart(subject)}")
    return Fix(f"{why}, {restart(subject)}", assignment(VARIABLE, ",".join(uuids)))


def unset_fix(subject: Subject, why: str) -> Fix:
    return Fix(f"{why}, {restart(subject)}", f"unset {VARIABLE}")


def inherited(subject: Subject, *names: str) -> bool:
    """Whether the doctor came upon a process that only repeats its parent, variables and access alike.

    One wrong value in a shell shall be one finding, not one for each of its sixty workers.
    """
    if subject.asked:
        return False
    host, pid = subject.host, subject.pid
    try:
        parent = subject.status.ppid
        env = process.environ(host, parent)
        if any(env.get(name) != subject.env.get(name) for name in names or (VARIABLE, ORDER)):
            return False
        return host.text(f"/proc/{pid}/cgroup") == host.text(f"/proc/{parent}/cgroup") and host.readlink(
            f"/proc/{pid}/ns/mnt"
        ) == host.readlink(f"/proc/{parent}/ns/mnt")
    except (NotFound, Unknown):
        return False
