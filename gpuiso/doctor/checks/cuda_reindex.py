# SPDX-License-Identifier: Apache-2.0
"""Numbers in CUDA_VISIBLE_DEVICES that meant other GPUs where they were written.

A GPU whose node the process cannot open disappears before CUDA counts, and the rest are numbered afresh from 0
(measured; docs/visibility.md). A number taken from the host then names another GPU, or none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpuiso.doctor.checks.cuda_words import CUDA_GUIDE, gpu_name, inherited, openable, select_fix, unset_fix
from gpuiso.doctor.finding import Evidence, Finding, Fix, Rule, Severity
from gpuiso.doctor.machine import Subject
from gpuiso.doctor.registry import process_check
from gpuiso.errors import NotFound, Unknown
from gpuiso.gpu.model import Gpu
from gpuiso.gpu.visibility.cuda import VARIABLE, lex
from gpuiso.gpu.visibility.model import Kind, Reason, Token
from gpuiso.gpu.visibility.tokens import items
from gpuiso.host import process

__all__: list[str] = []

REINDEX = Rule(
    "GPU-CVD-REINDEX",
    "error",
    "Numbers in CUDA_VISIBLE_DEVICES name other GPUs here than on the host",
    "GPUs that the process cannot open shift the numbers of the rest: an index taken from the host is wrong",
    (
        "https://github.com/NVIDIA/pyxis/issues/47",
        "https://github.com/devitocodes/devito/pull/2710",
        "https://github.com/NVIDIA/nvidia-docker/issues/907",
        CUDA_GUIDE,
    ),
)

#: Variables that hold numbers of the host. Slurm's stay so where it renumbers CUDA_VISIBLE_DEVICES (gres.conf(5)).
_HOST_NUMBERS = ("NVIDIA_VISIBLE_DEVICES", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS")


@dataclass(frozen=True, slots=True)
class _Shift:
    """What became of one number: the GPU of that number on the host, and the one it names here (None for none)."""

    number: int
    meant: Gpu
    named: Gpu | None

    def __str__(self) -> str:
        here = "no GPU" if self.named is None else gpu_name(self.named)
        return f"{self.number} is {gpu_name(self.meant)} on the host and {here} here"


def _shifts(subject: Subject) -> list[_Shift]:
    """Every number that names something else here than on the host."""
    gpus = subject.machine.nvidia
    found = []
    for token in subject.visibility.tokens:
        number = token.number
        if token.kind is not Kind.INDEX or number is None or not 0 <= number < len(gpus):
            continue
        if token.reason not in (None, Reason.OUT_OF_RANGE):
            continue
        named = None if token.physical is None else gpus[token.physical]
        if named is not gpus[number]:
            found.append(_Shift(number, gpus[number], named))
    return found


def _numbers_text(subject: Subject) -> str:
    return ",".join(text.strip() for text in items(subject.env[VARIABLE]))


def _written_on_host(subject: Subject) -> Evidence | None:
    """What proves that the numbers were meant as the host counts."""
    value = _numbers_text(subject)
    for name in _HOST_NUMBERS:
        if subject.env.get(name) == value:
            return subject.environ_evidence(name)
    for pid in process.ancestors(subject.host, subject.pid):
        try:
            if process.environ(subject.host, pid).get(VARIABLE) != subject.env[VARIABLE]:
                continue
            seen = Subject(subject.machine, pid, asked=False).visibility.gpus
        except (NotFound, Unknown):
            continue  # an ancestor that cannot be examined proves nothing
        if [gpu.physical for gpu in seen] != [gpu.physical for gpu in subject.visibility.gpus]:
            comm = process.command_name(subject.host, pid)
            there = ", ".join(gpu_name(subject.machine.nvidia[gpu.physical]) for gpu in seen) or "no GPU"
            return Evidence(f"/proc/{pid}/environ", f"{comm} has the same {VARIABLE}, which there selects {there}")
    return None


def _hidden(subject: Subject) -> list[Evidence]:
    """The GPU nodes that the process cannot open, and why."""
    found = []
    for gpu in subject.machine.nvidia:
        answer = None if gpu.node is None else subject.denied.get(gpu.node.path)
        if answer is not None:
            gate = answer.denied_by
            found.append(Evidence(answer.node, "denied" if gate is None else f"{gate.errno or 'denied'}: {gate.says}"))
    return found


def _all_in_order(subject: Subject, tokens: tuple[Token, ...]) -> bool:
    """Whether the list is 0,1,... over all that the process may open: what it would see with the variable unset."""
    return [token.number for token in tokens] == list(range(len(openable(subject))))


def _how_bad(subject: Subject, shifts: list[_Shift]) -> tuple[Severity, Evidence | None] | None:
    """How likely the numbers were meant as the host counts; None where nothing speaks for it."""
    proof = _written_on_host(subject)
    if proof is not None or any(shift.named is None for shift in shifts):
        return "error", proof
    absent = all(
        subject.denied[gpu.node.path].denied_by is not None
        and getattr(subject.denied[gpu.node.path].denied_by, "errno", None) == "ENOENT"
        for gpu in subject.machine.nvidia
        if gpu.node is not None and gpu.node.path in subject.denied
    )
    if absent:
        return None  # a container that was given some GPUs counts them from 0, as everybody expects
    if _all_in_order(subject, subject.visibility.tokens) and not subject.asked:
        return None
    return "warning", None


@process_check(REINDEX)
def reindexed(subject: Subject) -> Iterator[Finding]:
    """A number of the host where the process sees only some of the host's GPUs."""
    gpus = subject.machine.nvidia
    value = subject.env.get(VARIABLE)
    if value is None or len(gpus) < 2 or any(gpu.mig_enabled for gpu in gpus):
        return  # what an index names in MIG mode is not documented
    if not any(lex(0, text).kind is Kind.INDEX for text in items(value)):
        return
    left = openable(subject)
    if not left or len(left) == len(gpus):
        return
    shifts = _shifts(subject)
    bad = _how_bad(subject, shifts) if shifts else None
    if bad is None or inherited(subject):
        return
    severity, proof = bad
    seen = f"can open {len(left)} of the host's {len(gpus)} GPUs, so CUDA numbers them 0 to {len(left) - 1} for it"
    if len(left) == 1:
        seen = f"can open one of the host's {len(gpus)} GPUs, {gpu_name(left[0])}, so CUDA calls that one 0"
    yield REINDEX.finding(
        f"{subject.comm} (pid {subject.pid}) {seen}. In {VARIABLE}={value}, {'; '.join(map(str, shifts))}.",
        evidence=[
            subject.environ_evidence(VARIABLE),
            *([] if proof is None else [proof]),
            *_hidden(subject),
        ],
        fix=_fixes(subject, shifts, left),
        target=subject.target,
        severity=severity,
        title="A number in CUDA_VISIBLE_DEVICES names no GPU here"
        if all(shift.named is None for shift in shifts)
        else "A number in CUDA_VISIBLE_DEVICES names another GPU here than on the host",
    )


def _fixes(subject: Subject, shifts: list[_Shift], left: list[Gpu]) -> list[Fix]:
    moved = {shift.number for shift in shifts}
    numbers = [token.number for token in subject.visibility.tokens if token.kind is Kind.INDEX]
    meant = [subject.machine.nvidia[n] for n in numbers if n is not None and 0 <= n < len(subject.machine.nvidia)]
    reachable = [gpu for gpu in dict.fromkeys(meant) if gpu in left]
    fixes = []
    if reachable:
        fixes.append(
            select_fix(subject, reachable, "If the numbers were meant as on the host, name those GPUs by UUID")
        )
    closed = [gpu for gpu in dict.fromkeys(meant) if gpu not in left and gpu.index in moved]
    if closed:
        names = ", ".join(map(gpu_name, closed))
        fixes.append(Fix(f"{names} cannot be opened by this process: give it that GPU, or choose another one"))
    fixes.append(unset_fix(subject, "If it may use all that it can open, unset the variable"))
    return fixes
