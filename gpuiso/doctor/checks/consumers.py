# SPDX-License-Identifier: Apache-2.0
"""Programs that read CUDA_VISIBLE_DEVICES in their own way, or set it when CUDA no longer looks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gpuiso.doctor.checks.cuda_words import CUDA_GUIDE, assignment, gpu_name, inherited
from gpuiso.doctor.finding import Evidence, Finding, Fix, Rule
from gpuiso.doctor.machine import Subject
from gpuiso.doctor.registry import process_check
from gpuiso.gpu.visibility import cuda_visible
from gpuiso.gpu.visibility.cuda import VARIABLE, lex
from gpuiso.gpu.visibility.model import Kind
from gpuiso.gpu.visibility.tokens import items

__all__: list[str] = []

AFTER_INIT = Rule(
    "GPU-CVD-AFTER-INIT",
    "info",
    "The program sets CUDA_VISIBLE_DEVICES too late",
    "A script assigns CUDA_VISIBLE_DEVICES after CUDA has started in it: CUDA reads the variable once",
    ("https://github.com/pytorch/pytorch/issues/23544", "https://github.com/pytorch/pytorch/issues/80876", CUDA_GUIDE),
)
CONSUMER_UUID = Rule(
    "GPU-CVD-CONSUMER-UUID",
    "info",
    "A library in the process reads only numbers from CUDA_VISIBLE_DEVICES",
    "CUDA takes UUIDs in CUDA_VISIBLE_DEVICES, but a library that the process uses counts them as no device",
    ("https://github.com/pytorch/pytorch/issues/90543", "https://github.com/pytorch/pytorch/pull/92315"),
)

_TORCH = re.compile(r"(?P<site>/.+)/torch/lib/lib(?:torch|c10)[^/]*\.so[^/]*")
_TORCH_INFO = re.compile(r"torch-(\d{1,4})\.(\d{1,4})[^/]*\.(?:dist|egg)-info")
_TORCH_READS_UUIDS = (2, 0)
_LONGEST_SCRIPT = 1 << 20  # bytes

_ASSIGNS = re.compile(
    rf"""^[^#\n]*environ(?:\[\s*["']{VARIABLE}["']\s*\]\s*=|\.setdefault\(\s*["']{VARIABLE}["']\s*,)\s*"""
    r"""(?:str\(\s*)?["']?(?P<value>[\w,.:/ -]*)""",
    re.MULTILINE,
)
_USES_CUDA = re.compile(r"^\s*(?:import|from)\s+(?P<module>torch|tensorflow|cupy|jax|numba|pycuda)\b", re.MULTILINE)


@process_check(CONSUMER_UUID)
def numbers_only(subject: Subject) -> Iterator[Finding]:
    """PyTorch before 2.0 counts devices by the numbers in the list alone."""
    value = subject.env.get(VARIABLE)
    if value is None or not subject.machine.nvidia:
        return
    kinds = {lex(position, text).kind for position, text in enumerate(items(value))}
    if not kinds & {Kind.UUID, Kind.MIG}:
        return
    for path in sorted(subject.mapped_files):
        match = _TORCH.fullmatch(path)
        if match is None:
            continue
        for name in subject.host.listdir(f"/proc/{subject.pid}/root{match['site']}") or ():
            version = _TORCH_INFO.fullmatch(name)
            if version is not None and (int(version[1]), int(version[2])) < _TORCH_READS_UUIDS:
                if not inherited(subject):
                    yield _old_torch(subject, path, f"{match['site']}/{name}", f"{version[1]}.{version[2]}")
                return
        return


def _old_torch(subject: Subject, library: str, info: str, version: str) -> Finding:
    numbers = ",".join(str(gpu.physical) for gpu in subject.visibility.gpus if gpu.mig is None)
    return CONSUMER_UUID.finding(
        f"{VARIABLE}={subject.env[VARIABLE]} is right for CUDA, but PyTorch {version} in {subject.comm}"
        f" (pid {subject.pid}) knows numbers alone: where it counts devices itself, it counts none.",
        evidence=[
            subject.environ_evidence(VARIABLE),
            Evidence(f"/proc/{subject.pid}/maps", library),
            Evidence(f"/proc/{subject.pid}/root{info}", f"PyTorch {version}"),
        ],
        fix=[
            Fix("Update PyTorch to 2.0 or later", "pip install --upgrade 'torch>=2.0'"),
            Fix(
                "Or give it numbers, counted among the GPUs that the process may open",
                f"export CUDA_DEVICE_ORDER=PCI_BUS_ID {VARIABLE}={numbers}" if numbers else None,
            ),
        ],
        target=subject.target,
    )


@dataclass(frozen=True, slots=True)
class _Assignment:
    """Where a script sets the variable, to what, and which import of a CUDA library stands before that."""

    path: str
    line: int
    value: str
    module: str
    module_line: int


def _script(subject: Subject) -> str | None:
    """The Python script a process runs, as the process sees it; None if it runs none that has a file."""
    words = (subject.host.text(f"/proc/{subject.pid}/cmdline") or "").split("\0")
    if "python" not in words[0].rpartition("/")[2]:
        return None
    name = next((word for word in words[1:] if word.endswith(".py")), None)
    if name is None or name.startswith("/"):
        return name
    directory = subject.host.readlink(f"/proc/{subject.pid}/cwd")
    return None if directory is None else f"{directory.rstrip('/')}/{name.removeprefix('./')}"


def _late_assignment(subject: Subject, path: str) -> _Assignment | None:
    place = f"/proc/{subject.pid}/root{path}"
    node = subject.host.stat(place)
    if node is None or (node.size or 0) > _LONGEST_SCRIPT:
        return None
    text = subject.host.text(place) or ""
    assigns, uses = _ASSIGNS.search(text), _USES_CUDA.search(text)
    if assigns is None or uses is None or assigns.start() < uses.start():
        return None

    def line(match: re.Match[str], group: str) -> int:
        return text.count("\n", 0, match.start(group)) + 1

    return _Assignment(path, line(assigns, "value"), assigns["value"], uses["module"], line(uses, "module"))


@process_check(AFTER_INIT)
def set_too_late(subject: Subject) -> Iterator[Finding]:
    """The script assigns a value, and NVML shows the process on a GPU that this value excludes."""
    gpus = subject.machine.nvidia
    if len(gpus) < 2 or not subject.comm.startswith("python") or "/dev/nvidia-uvm" not in subject.holds:
        return
    nvml = subject.host.nvml() or {}
    used = {
        gpu.get("uuid")
        for gpu in nvml.get("gpus", [])
        if any(process.get("pid") == subject.pid for process in gpu.get("processes") or ())
    }
    if not used:
        return
    path = _script(subject)
    late = None if path is None else _late_assignment(subject, path)
    if late is None:
        return
    env = {**subject.env, VARIABLE: late.value}
    meant = [gpus[gpu.physical] for gpu in cuda_visible(gpus, env, denied=frozenset(subject.denied)).gpus]
    others = [gpu for gpu in gpus if gpu.uuid in used and gpu not in meant]
    if not others:
        return
    yield AFTER_INIT.finding(
        f"{late.path} sets {VARIABLE} to {late.value!r} in line {late.line}, but the process (pid {subject.pid}) works"
        f" on {', '.join(map(gpu_name, others))}: CUDA had read the variable before. {late.module} is imported in line"
        f" {late.module_line}.",
        evidence=[
            Evidence(f"/proc/{subject.pid}/root{late.path}", f"line {late.line}: {VARIABLE} = {late.value!r}"),
            Evidence("NVML", f"pid {subject.pid} has memory on {', '.join(map(gpu_name, others))}"),
            subject.environ_evidence(VARIABLE),
        ],
        fix=[
            Fix(f"Set it above the import of {late.module}, before anything calls CUDA"),
            Fix("Or set it where the program is started", assignment(VARIABLE, late.value)),
        ],
        target=subject.target,
    )
