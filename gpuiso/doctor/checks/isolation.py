# SPDX-License-Identifier: Apache-2.0
"""What the environment selects beside what the process could open: a variable asks, it does not forbid."""

from __future__ import annotations

from collections.abc import Iterator

from gpuiso.doctor.checks.cuda_words import CUDA_GUIDE, gpu_name, openable
from gpuiso.doctor.finding import Evidence, Finding, Fix, Rule
from gpuiso.doctor.machine import Subject
from gpuiso.doctor.registry import process_check
from gpuiso.gpu.model import Gpu
from gpuiso.gpu.visibility.cuda import VARIABLE
from gpuiso.gpu.visibility.nodes import NVIDIA_UVM, NVIDIACTL

__all__: list[str] = []

ENV_ONLY = Rule(
    "GPU-ENV-ONLY-ISOLATION",
    "info",
    "Only an environment variable keeps the process off other GPUs",
    "CUDA_VISIBLE_DEVICES selects fewer GPUs than the process can open: it can take the others by changing it",
    ("https://github.com/Parsl/parsl/issues/2740", "https://github.com/apptainer/apptainer/issues/2203", CUDA_GUIDE),
)
NVML_IGNORES = Rule(
    "GPU-NVML-IGNORES-CVD",
    "info",
    "NVML does not read CUDA_VISIBLE_DEVICES",
    "nvidia-smi and other NVML tools list every GPU they can open, whatever CUDA_VISIBLE_DEVICES says",
    ("https://github.com/apptainer/apptainer/issues/2203", "https://github.com/sylabs/singularity/issues/1994"),
)

#: Programs that show GPUs through NVML (comm, at most 15 bytes).
_NVML_TOOLS = frozenset({"nvidia-smi", "nvtop", "gpustat", "nv-hostengine", "dcgm-exporter", "dcgmi"})


def _selected(subject: Subject) -> tuple[list[Gpu], list[Gpu]] | None:
    """The GPUs selected and those that could be opened, where a faultless list makes a difference between them."""
    gpus = subject.machine.nvidia
    if VARIABLE not in subject.env or len(gpus) < 2:
        return None
    if any(token.reason is not None or token.rest.strip() for token in subject.visibility.tokens):
        return None
    left = openable(subject)
    chosen = list(dict.fromkeys(gpus[gpu.physical] for gpu in subject.visibility.gpus))
    return (chosen, left) if 0 < len(chosen) < len(left) else None


@process_check(NVML_IGNORES)
def nvml_tool(subject: Subject) -> Iterator[Finding]:
    """A tool of NVML that runs under the variable."""
    if subject.comm not in _NVML_TOOLS:
        return
    selected = _selected(subject)
    if selected is None:
        return
    chosen, left = selected
    uuids = ",".join(gpu.uuid for gpu in chosen if gpu.uuid is not None)
    only = f"nvidia-smi -i {uuids}" if uuids and subject.comm == "nvidia-smi" else None
    yield NVML_IGNORES.finding(
        f"{subject.comm} (pid {subject.pid}) runs with {VARIABLE}={subject.env[VARIABLE]}, which NVML does not read: it"
        f" lists all {len(left)} GPUs that it can open. CUDA programs with the same environment see"
        f" {', '.join(map(gpu_name, chosen))}.",
        evidence=[
            Evidence(f"/proc/{subject.pid}/comm", subject.comm),
            subject.environ_evidence(VARIABLE),
            *(Evidence(gpu.node.path, "can be opened") for gpu in left if gpu.node is not None),
        ],
        fix=[Fix("To look at the selected GPUs alone, name them to the tool", only)],
        target=subject.target,
    )


@process_check(ENV_ONLY)
def env_only(subject: Subject) -> Iterator[Finding]:
    """Worth knowing for whoever asks about the process; on a machine of one's own it is how things are."""
    if not subject.asked or subject.comm in _NVML_TOOLS:
        return
    selected = _selected(subject)
    if selected is None:
        return
    chosen, left = selected
    if len(left) < len(subject.machine.nvidia):
        return  # more than a variable is at work
    others = [gpu for gpu in left if gpu not in chosen]
    yield ENV_ONLY.finding(
        f"{VARIABLE} selects {', '.join(map(gpu_name, chosen))} for {subject.comm} (pid {subject.pid}), which can open"
        f" {', '.join(map(gpu_name, others))} as well. The variable is a choice of the program's own: nothing keeps it"
        " off the others, and nvidia-smi shows them all.",
        evidence=[
            subject.environ_evidence(VARIABLE),
            *(Evidence(gpu.node.path, "can be opened") for gpu in left if gpu.node is not None),
        ],
        fix=[_enforce(subject, chosen)],
        target=subject.target,
    )


def _enforce(subject: Subject, chosen: list[Gpu]) -> Fix:
    """Device rules let a process open the selected GPUs alone."""
    text = "If that has to be enforced, start it in a container or unit that is given the selected GPUs alone"
    nodes = [gpu.node.path for gpu in chosen if gpu.node is not None]
    if not subject.host.systemd:
        return Fix(text)
    allow = " ".join(f"-p DeviceAllow={path}" for path in (*nodes, NVIDIACTL, NVIDIA_UVM))
    return Fix(
        f"{text} (not tried here); within it {VARIABLE} must hold UUIDs or stay unset",
        f"sudo systemd-run --pty -p DevicePolicy=closed {allow} COMMAND",
    )
