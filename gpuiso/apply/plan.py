# SPDX-License-Identifier: Apache-2.0
"""Plans: what will be done to a target to make a policy hold, in which order, and how it is verified."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuiso.apply.calls import Calls
from gpuiso.apply.steps.base import Step
from gpuiso.apply.target import Target
from gpuiso.apply.verify import Proof, Verification, verify
from gpuiso.policy.resolve import ResolvedPolicy

__all__ = ["Plan", "policy_as_json"]


@dataclass(frozen=True)
class Plan:
    """``policy`` is the policy as JSON, to be remembered; ``notes`` are what a reader should know."""

    target: Target
    steps: tuple[Step, ...]
    verification: Verification | None
    policy: Mapping[str, Any]
    notes: tuple[str, ...] = ()

    def about(self) -> dict[str, Any]:
        """The first line of the journal."""
        return {"target": self.target.key, "policy": self.policy}

    def describe(self) -> list[str]:
        """The plan in plain words, one step a line."""
        lines = [f"{step.describe()}; then check: {step.verifies()}" for step in self.steps]
        return lines if self.verification is None else [*lines, self.verification.describe()]

    def verify(self, calls: Calls) -> Proof:
        """:raises StepFailed: the policy does not hold."""
        return Proof() if self.verification is None else verify(self.verification, calls)


def policy_as_json(policy: ResolvedPolicy, *, file: str | None = None) -> dict[str, Any]:
    """What is remembered of a policy; null for what it does not speak of.

    ``narrower`` are the accesses that it allows and something else denies, where that was accepted.
    """
    devices = policy.restricts_devices
    return {
        "file": file,
        "rules": [str(rule) for rule in policy.rules] if devices else None,
        "default_allow": policy.default_allow if devices else None,
        "gpu.max": None if policy.gpu_max is None else str(policy.gpu_max),
        "gpu.memory.max": None if policy.memory_max is None else str(policy.memory_max),
        "narrower": [] if devices else None,
        "files": {name: list(lines) for name, lines in policy.files.items()} or None,
    }
