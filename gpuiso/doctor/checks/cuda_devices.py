# SPDX-License-Identifier: Apache-2.0
"""Tokens of CUDA_VISIBLE_DEVICES that name no GPU of this host, or none that the process may open."""

from __future__ import annotations

from collections.abc import Iterator

from gpuiso.doctor.checks.cuda_list import BADTOKEN, bare_uuid
from gpuiso.doctor.checks.cuda_words import (
    CUDA_GUIDE,
    gpu_name,
    inherited,
    left_over,
    restart,
    select_fix,
    shown,
    unset_fix,
)
from gpuiso.doctor.finding import Evidence, Finding, Fix, Rule, Severity
from gpuiso.doctor.machine import Subject
from gpuiso.doctor.registry import process_check
from gpuiso.errors import Unknown
from gpuiso.gpu.visibility import cuda_visible
from gpuiso.gpu.visibility.cuda import VARIABLE
from gpuiso.gpu.visibility.model import Kind, Reason, Token
from gpuiso.gpu.visibility.tokens import hex_run, quoted

__all__ = ["UUID_STALE", "first_with", "severity_of"]

OUT_OF_RANGE = Rule(
    "GPU-CVD-OOR",
    "error",
    "CUDA_VISIBLE_DEVICES names a GPU number that does not exist",
    "A number in CUDA_VISIBLE_DEVICES is not below the number of GPUs: the list ends there",
    (CUDA_GUIDE, "https://github.com/maccallumlab/meld/issues/84"),
)
DUPLICATE = Rule(
    "GPU-CVD-DUP",
    "error",
    "CUDA_VISIBLE_DEVICES names a GPU twice",
    "A GPU that stands twice in CUDA_VISIBLE_DEVICES makes CUDA refuse to start at all (cuInit 101)",
    (CUDA_GUIDE, "https://github.com/pytorch/pytorch/pull/92315"),
)
AMBIGUOUS = Rule(
    "GPU-CVD-AMBIG-UUID",
    "error",
    "A shortened UUID in CUDA_VISIBLE_DEVICES fits more than one GPU",
    "A UUID prefix in CUDA_VISIBLE_DEVICES fits several GPUs: the list ends there",
    (CUDA_GUIDE,),
)
DENIED = Rule(
    "GPU-CVD-DENIED",
    "error",
    "CUDA_VISIBLE_DEVICES selects a GPU that the process may not open",
    "A UUID in CUDA_VISIBLE_DEVICES names a GPU of this host whose node the process cannot open",
    (CUDA_GUIDE,),
)
UUID_STALE = Rule(
    "GPU-UUID-STALE",
    "error",
    "A GPU UUID is configured that this host does not have",
    "A variable or a container's configuration names a GPU UUID that is no longer on this host",
    ("https://github.com/truenas/middleware/pull/19499", CUDA_GUIDE),
)

_FULL_UUID = 36


def severity_of(subject: Subject) -> Severity:
    """An error where nothing is left to see, a warning where the list is only shorter than it was meant to be."""
    return "warning" if any(token.reason is None for token in subject.visibility.tokens) else "error"


def first_with(subject: Subject, *reasons: Reason) -> Token | None:
    """The first token without effect for one of these reasons."""
    if VARIABLE not in subject.env or not subject.machine.nvidia:
        return None
    return next((token for token in subject.visibility.tokens if token.reason in reasons), None)


@process_check(OUT_OF_RANGE)
def out_of_range(subject: Subject) -> Iterator[Finding]:
    """Beyond the last GPU of the whole host; what denied nodes moved out of range is GPU-CVD-REINDEX."""
    token = first_with(subject, Reason.OUT_OF_RANGE)
    gpus = subject.machine.nvidia
    if token is None or token.number is None or token.number < len(gpus) or bare_uuid(token.text):
        return
    count = len(cuda_visible(gpus, {}, denied=frozenset(subject.denied)).gpus)
    if not count or inherited(subject):
        return  # with nothing to count, the number is not the fault
    numbers = "0" if count == 1 else f"0 to {count - 1}"
    yield OUT_OF_RANGE.finding(
        f"{quoted(token.text)} in {VARIABLE} does not exist here: this process counts {count}, numbered {numbers}. CUDA"
        f" ends the list there: {shown(subject.visibility.tokens, gpus)}.",
        evidence=[
            subject.environ_evidence(VARIABLE),
            Evidence("/proc/driver/nvidia/gpus", f"{len(gpus)} GPU{'s' if len(gpus) > 1 else ''}"),
        ],
        fix=[select_fix(subject, left_over(subject), "Name GPUs that exist, best by UUID")],
        target=subject.target,
        severity=severity_of(subject),
    )


@process_check(DUPLICATE)
def duplicate(subject: Subject) -> Iterator[Finding]:
    """The same GPU twice, however spelled."""
    token = first_with(subject, Reason.DUPLICATE)
    if token is None or inherited(subject):
        return
    gpus = subject.machine.nvidia
    name = gpu_name(gpus[token.physical]) if token.physical is not None else "a GPU"
    once: list[int] = []
    for other in subject.visibility.tokens:
        if other.physical is not None and other.physical not in once and other.reason is not Reason.AFTER_END:
            once.append(other.physical)
    whole_gpus = all(other.kind is not Kind.MIG for other in subject.visibility.tokens)
    fix = [select_fix(subject, [gpus[number] for number in once], "Name each GPU once")] if whole_gpus else []
    yield DUPLICATE.finding(
        f"{VARIABLE}={subject.env[VARIABLE]} names {name} twice (the second time as {quoted(token.text)}). CUDA then"
        " refuses the whole list: cuInit fails with 101 (invalid device) and no GPU is visible.",
        evidence=[subject.environ_evidence(VARIABLE)],
        fix=fix or [Fix("Name each device once")],
        target=subject.target,
    )


@process_check(AMBIGUOUS)
def ambiguous(subject: Subject) -> Iterator[Finding]:
    """A prefix that fits several GPUs."""
    token = first_with(subject, Reason.AMBIGUOUS_UUID)
    if token is None or token.kind is not Kind.UUID or inherited(subject):
        return
    prefix = f"GPU-{hex_run(token.text[4:])}".lower()
    named = [gpu for gpu in left_over(subject) if (gpu.uuid or "").lower().startswith(prefix)]
    yield AMBIGUOUS.finding(
        f"{quoted(token.text)} in {VARIABLE} fits {' and '.join(map(gpu_name, named))}, and CUDA ends the list at an"
        f" ambiguous UUID: {shown(subject.visibility.tokens, subject.machine.nvidia)}.",
        evidence=[
            subject.environ_evidence(VARIABLE),
            *(Evidence(f"/proc/driver/nvidia/gpus/{gpu.pci_address}/information", gpu_name(gpu)) for gpu in named),
        ],
        fix=[select_fix(subject, named[:1], f"Write the whole UUID (GPU {named[0].index} as an example)")],
        target=subject.target,
        severity=severity_of(subject),
    )


@process_check(UUID_STALE, BADTOKEN)
def unknown_uuid(subject: Subject) -> Iterator[Finding]:
    """A UUID of no GPU on this host: whole, it was one once; in part, it is a slip."""
    token = first_with(subject, Reason.UNKNOWN_UUID)
    if token is None or token.kind is not Kind.UUID:
        return
    gpus = subject.machine.nvidia
    if any(gpu.uuid is None for gpu in gpus):
        raise Unknown("GPU UUIDs", "neither /proc/driver/nvidia nor NVML tells them all")
    if inherited(subject):
        return
    whole = len(hex_run(token.text[4:])) >= _FULL_UUID
    here = ", ".join(map(gpu_name, gpus))
    rule = UUID_STALE if whole else BADTOKEN
    what = "is no GPU of this host" if whole else "is the beginning of no GPU's UUID on this host"
    yield rule.finding(
        f"{token.text.strip()} in {VARIABLE} {what}. CUDA ends the list there:"
        f" {shown(subject.visibility.tokens, gpus)}.",
        evidence=[subject.environ_evidence(VARIABLE), Evidence("/proc/driver/nvidia/gpus/*/information", here)],
        fix=[select_fix(subject, left_over(subject)[:1], "Name a GPU that is here")],
        target=subject.target,
        severity=severity_of(subject),
    )


@process_check(BADTOKEN)
def mixed_kinds(subject: Subject) -> Iterator[Finding]:
    """Numbers and UUIDs in one list: the first token decides, and the other kind ends the list."""
    token = first_with(subject, Reason.MIXED_KIND)
    if token is None or inherited(subject):
        return
    gpus = subject.machine.nvidia
    wanted = []
    for other in subject.visibility.tokens:
        alone = cuda_visible(gpus, {VARIABLE: other.text}, denied=frozenset(subject.denied)).gpus
        wanted += [gpus[gpu.physical] for gpu in alone if gpus[gpu.physical] not in wanted]
    yield BADTOKEN.finding(
        f"{quoted(token.text)} in {VARIABLE}: {token.why}. {shown(subject.visibility.tokens, gpus)}.",
        evidence=[subject.environ_evidence(VARIABLE)],
        fix=[select_fix(subject, wanted, "Use one kind of name for all GPUs, best the UUIDs")],
        target=subject.target,
        severity="warning",
    )


@process_check(DENIED)
def denied(subject: Subject) -> Iterator[Finding]:
    """The GPU is on the host, but this process cannot open its node."""
    token = first_with(subject, Reason.DENIED)
    if token is None or token.physical is None or not left_over(subject) or inherited(subject):
        return
    gpu = subject.machine.nvidia[token.physical]
    path = gpu.node.path if gpu.node is not None else ""
    gate = subject.denied[path].denied_by
    why = "" if gate is None else f": {gate.says}"
    left = ", ".join(map(gpu_name, left_over(subject)))
    yield DENIED.finding(
        f"{VARIABLE} selects {gpu_name(gpu)}, but {subject.comm} (pid {subject.pid}) cannot open {path}{why}."
        f" {shown(subject.visibility.tokens, subject.machine.nvidia)}.",
        evidence=[
            subject.environ_evidence(VARIABLE),
            Evidence(path if gate is None else gate.where, "denied" if gate is None else gate.says),
        ],
        fix=[
            Fix(f"Give the process (its container, unit or cgroup) {gpu_name(gpu)}, {restart(subject)}"),
            select_fix(subject, left_over(subject)[:1], f"Or name one that it may open ({left})"),
            unset_fix(subject, "Or unset the variable, where the container or cgroup selects the GPUs already"),
        ],
        target=subject.target,
        severity=severity_of(subject),
    )
