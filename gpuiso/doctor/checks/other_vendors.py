# SPDX-License-Identifier: Apache-2.0
"""The variables of AMD's and Intel's libraries."""

from __future__ import annotations

from collections.abc import Iterator

from gpuiso.doctor.checks.cuda_words import inherited, restart
from gpuiso.doctor.finding import Evidence, Finding, Fix, Rule
from gpuiso.doctor.machine import Subject
from gpuiso.doctor.registry import process_check
from gpuiso.gpu.model import Gpu, Vendor
from gpuiso.gpu.visibility.level_zero import HIERARCHY, MASK, level_zero_visible
from gpuiso.gpu.visibility.model import Reason, Token
from gpuiso.gpu.visibility.rocm import rocm_visible
from gpuiso.gpu.visibility.tokens import quoted

__all__: list[str] = []

DOUBLE_MASK = Rule(
    "GPU-AMD-DOUBLE-MASK",
    "error",
    "Two variables filter AMD's GPUs one behind the other",
    "HIP_ or CUDA_VISIBLE_DEVICES counts what ROCR_VISIBLE_DEVICES left, from 0: numbers of the host miss",
    (
        "https://rocm.docs.amd.com/en/docs-6.1.2/conceptual/gpu-isolation.html",
        "https://github.com/lumi-ai-factory/laifs-container-recipes/issues/13",
        "https://github.com/eth-cscs/DLA-Future/pull/948",
    ),
)
INTEL_MASK = Rule(
    "GPU-INTEL-MASK-INVALID",
    "error",
    "ZE_AFFINITY_MASK cannot be read or selects nothing",
    "ZE_AFFINITY_MASK is not a list of DEVICE or DEVICE.SUBDEVICE, or names devices that do not exist",
    ("https://github.com/intel/llvm/pull/21653", "https://github.com/oneapi-src/level-zero/issues/86"),
)

_ROCR = "ROCR_VISIBLE_DEVICES"
_MOST_TILES = 4  # of a GPU that Intel has made; how many these have is not known here


def _name(gpu: Gpu) -> str:
    return f"GPU {gpu.index} ({gpu.pci_address})"


def _denied(subject: Subject, vendor: Vendor) -> frozenset[str]:
    """The vendor's render nodes that the process certainly cannot open."""
    nodes = [gpu.node.path for gpu in subject.machine.inventory.of(vendor) if gpu.node is not None]
    return frozenset(path for path in nodes if subject.access(path).verdict == "deny")


@process_check(DOUBLE_MASK)
def double_mask(subject: Subject) -> Iterator[Finding]:
    """The second list was written as if the first one did not renumber."""
    gpus = subject.machine.inventory.of("amd")
    if not gpus or not subject.env.get(_ROCR):
        return
    denied = _denied(subject, "amd")
    seen = rocm_visible(gpus, subject.env, denied=denied)
    second = [token for token in seen.tokens if token.variable != _ROCR]
    if not second:
        return
    left = rocm_visible(gpus, {_ROCR: subject.env[_ROCR]}, denied=denied).gpus
    lost = [t for t in second if t.reason is Reason.OUT_OF_RANGE and 0 <= (t.number or 0) < len(gpus)]
    host_numbers = [t for t in second if t.reason is None and t.number is not None and t.physical != t.number]
    # The same list twice was written once, for the host; a different one may well be meant for what is left.
    twice = subject.env[second[0].variable] == subject.env[_ROCR]
    if not left or not (lost or (twice and host_numbers)) or inherited(subject, _ROCR, second[0].variable):
        return
    yield _doubled(subject, second, [gpus[gpu.physical] for gpu in left], [gpus[gpu.physical] for gpu in seen.gpus])


def _doubled(subject: Subject, second: list[Token], left: list[Gpu], seen: list[Gpu]) -> Finding:
    variable = second[0].variable
    result = f"only {', '.join(map(_name, seen))} is visible" if seen else "no GPU is visible"
    return DOUBLE_MASK.finding(
        f"{_ROCR}={subject.env[_ROCR]} leaves {', '.join(map(_name, left))}, and HIP counts them from 0."
        f" {variable}={subject.env[variable]} filters that once more, with numbers of the host: {result}.",
        evidence=[subject.environ_evidence(_ROCR), subject.environ_evidence(variable)],
        fix=[Fix(f"Keep {_ROCR} alone, which counts for all of ROCm, {restart(subject)}", f"unset {variable}")],
        target=subject.target,
    )


def _selects_nothing(tokens: tuple[Token, ...], count: int, *, composite: bool) -> Token | None:
    """The first token, where none can select anything however many tiles the GPUs have; None if one might."""
    if composite:
        hopeless = all(token.reason is Reason.OUT_OF_RANGE for token in tokens)
    else:
        hopeless = all(
            token.reason is Reason.SUBDEVICE or (token.number or 0) >= count * _MOST_TILES for token in tokens
        )
    return tokens[0] if hopeless and tokens else None


@process_check(INTEL_MASK)
def intel_mask(subject: Subject) -> Iterator[Finding]:
    """A mask that the driver cannot read hides every GPU; a device that does not exist is passed over."""
    value = subject.env.get(MASK)
    gpus = subject.machine.inventory.of("intel")
    if not value or not gpus:
        return
    seen = level_zero_visible(gpus, subject.env, denied=_denied(subject, "intel"))
    malformed = next((token for token in seen.tokens if token.reason is Reason.MALFORMED), None)
    token = malformed
    if token is None and not seen.gpus:
        token = _selects_nothing(seen.tokens, len(gpus), composite=subject.env.get(HIERARCHY) == "COMPOSITE")
    if token is None or inherited(subject, MASK, HIERARCHY):
        return
    subdevice = token.reason is Reason.SUBDEVICE
    yield INTEL_MASK.finding(
        f"{quoted(token.text)} in {MASK}={value}: {token.why}. Level Zero shows no GPU to {subject.comm}"
        f" (pid {subject.pid}).",
        evidence=[
            subject.environ_evidence(MASK),
            subject.environ_evidence(HIERARCHY),
            Evidence("/sys/bus/pci/devices", ", ".join(map(_name, gpus))),
        ],
        fix=[
            Fix("Let the mask name subdevices, as it was written for", f"export {HIERARCHY}=COMPOSITE")
            if subdevice
            else Fix("Write the numbers of devices, separated by commas", f"export {MASK}=0")
        ],
        target=subject.target,
    )
