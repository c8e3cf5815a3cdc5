# SPDX-License-Identifier: Apache-2.0
"""Environment variables whose names are a slip away from one that selects GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from gpuiso.doctor.checks.cuda_words import assignment, inherited, restart
from gpuiso.doctor.finding import Evidence, Finding, Fix, Rule
from gpuiso.doctor.machine import Subject
from gpuiso.doctor.registry import process_check
from gpuiso.gpu.visibility.names import VARIABLES

__all__ = ["edits", "meant"]

TYPO = Rule(
    "GPU-CVD-TYPO",
    "warning",
    "A variable that selects GPUs is misspelt",
    "An environment variable's name differs by one or two letters from one that selects GPUs; nobody reads it",
    ("https://github.com/cBio/cbio-cluster/issues/1",),
)

#: Names that others really read, however near they come: other vendors' selectors, and ROCm's and CUDA's own settings.
_OTHERS = frozenset(
    {
        "ASCEND_VISIBLE_DEVICES",
        "HSA_VISIBLE_DEVICES",
        "MACA_VISIBLE_DEVICES",
        "MLU_VISIBLE_DEVICES",
        "MUSA_VISIBLE_DEVICES",
        "NPU_VISIBLE_DEVICES",
        "TPU_VISIBLE_DEVICES",
        "XPU_VISIBLE_DEVICES",
    }
)
_FARTHEST = 2  # edits


def edits(one: str, other: str) -> int:
    """How many letters were put in, left out, replaced or swapped with their neighbour (optimal string alignment)."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        current = [i]
        for j, b in enumerate(other, 1):
            cost = min(row[j] + 1, current[j - 1] + 1, row[j - 1] + (a != b))
            if i > 1 and j > 1 and a == other[j - 2] and one[i - 2] == b:
                cost = min(cost, before[j - 2] + 1)
            current.append(cost)
        before, row = row, current
    return row[-1]


@lru_cache(maxsize=4096)
def meant(name: str) -> str | None:
    """The variable that a misspelt name was meant to be, None for a name that is no slip.

    What somebody put before or behind the whole name (``CUDA_VISIBLE_DEVICES_ORIG``, ``_CUDA_VISIBLE_DEVICES``) keeps
    a copy and is no slip; another case, a blank or a doubled last letter is.
    """
    if name in VARIABLES or name in _OTHERS:
        return None
    folded = name.upper().strip()
    for known in VARIABLES:
        if folded == known:
            return known
        if abs(len(folded) - len(known)) > _FARTHEST:
            continue
        added = folded.removeprefix(known) if folded.startswith(known) else folded.removesuffix(known)
        if added != folded and added != known[-1]:
            return None
        if edits(folded, known) <= _FARTHEST:
            return known
    return None


@process_check(TYPO)
def misspelt(subject: Subject) -> Iterator[Finding]:
    """Silent where the right name is set to the same value."""
    if not subject.machine.inventory.gpus:
        return
    for name, value in subject.env.items():
        known = meant(name)
        if known is None or subject.env.get(known) == value or inherited(subject, name, known):
            continue
        yield TYPO.finding(
            f"{name!r} in the environment of {subject.comm} (pid {subject.pid}) looks like {known}."
            f" Nothing reads the misspelt name, so {name}={value} has no effect.",
            evidence=[
                Evidence(f"/proc/{subject.pid}/environ", f"{name}={value}"),
                subject.environ_evidence(known),
            ],
            fix=[Fix(f"Correct the name where it is set, {restart(subject)}", assignment(known, value))],
            target=subject.target,
        )
