# SPDX-License-Identifier: Apache-2.0
"""A gate's answer, and the sum of all gates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["Explanation", "Gate", "Verdict"]

Verdict = Literal["allow", "deny", "unknown"]


@dataclass(frozen=True, slots=True)
class Gate:
    """What one gate answers.

    ``gate`` is its kind (``path``, ``nodev``, ``mode``, ``cgroup-v2``, ``cgroup-v1``, ``driver``, ...), ``where`` what
    it sits on (a path, a mount point, a cgroup), ``by`` who put it there, ``rule`` the rule that decided, ``says`` the
    answer in words and ``errno`` what open(2) fails with if this gate denies.
    """

    gate: str
    where: str
    verdict: Verdict
    by: str
    says: str
    rule: str | None = None
    errno: str | None = None

    def as_json(self) -> dict[str, Any]:
        found = {
            "gate": self.gate,
            "where": self.where,
            "verdict": self.verdict,
            "by": self.by,
            "says": self.says,
        }
        return found if self.rule is None else {**found, "rule": self.rule}


@dataclass(frozen=True, slots=True)
class Explanation:
    """All gates between a process (or cgroup) and a node, in the kernel's order.

    The verdict is ``deny`` if a gate denies, else ``unknown`` if one is unknown, else ``allow``.
    """

    node: str
    access: str
    gates: tuple[Gate, ...]

    @property
    def first_denial(self) -> int | None:
        """The place in ``gates`` of the first one that denies."""
        return next((place for place, gate in enumerate(self.gates) if gate.verdict == "deny"), None)

    @property
    def denied_by(self) -> Gate | None:
        place = self.first_denial
        return None if place is None else self.gates[place]

    @property
    def verdict(self) -> Verdict:
        verdicts = {gate.verdict for gate in self.gates}
        return "deny" if "deny" in verdicts else "unknown" if "unknown" in verdicts else "allow"

    @property
    def unknown_because(self) -> str | None:
        """Why the first gate that is unknown is so."""
        return next((gate.says for gate in self.gates if gate.verdict == "unknown"), None)
