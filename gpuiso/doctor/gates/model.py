# SPDX-License-Identifier: Apache-2.0
"""A gate's answer, and the sum of all gates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["Explanation", "Gate", "Verdict"]

#: Gates that a probe does not meet.
_NOT_PROBED = frozenset({"driver", "lsm"})
#: The rule of a mount that counts as nodev without having that flag: access(2) does not tell.
USER_NAMESPACE_MOUNT = "SB_I_NODEV"

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

    ``passive`` are the gates as they were read. ``probed`` is an access that was tried, if one was: the kernel's own
    answer, which counts for more than what was read. A probe does not ask the driver and does not take on the
    process's security context, so these two gates count beside it. ``notes`` say what may stop the process though no
    gate tells of it. One of ``pid`` and ``cgroup`` says who was asked about.
    """

    node: str
    access: str
    passive: tuple[Gate, ...]
    probed: Gate | None = None
    pid: int | None = None
    cgroup: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def gates(self) -> tuple[Gate, ...]:
        """All of them, the probe last."""
        return self.passive if self.probed is None else (*self.passive, self.probed)

    @property
    def _trusted(self) -> tuple[Gate, ...]:
        if self.probed is None or self.probed.verdict == "unknown":
            return self.passive
        agreeing = tuple(gate for gate in self.passive if _not_probed(gate) or gate.verdict == self.probed.verdict)
        return (*agreeing, self.probed)

    @property
    def denied_by(self) -> Gate | None:
        """The first gate that denies."""
        return next((gate for gate in self._trusted if gate.verdict == "deny"), None)

    @property
    def first_denial(self) -> int | None:
        """The place in ``gates`` of the first one that denies."""
        gate = self.denied_by
        return None if gate is None else self.gates.index(gate)

    @property
    def verdict(self) -> Verdict:
        """``deny`` if a gate denies, else ``unknown`` if one is unknown, else ``allow``."""
        return _sum(self._trusted)

    @property
    def unknown_because(self) -> str | None:
        """Why the first gate that is unknown is so."""
        return next((gate.says for gate in self._trusted if gate.verdict == "unknown"), None)

    @property
    def disagreement(self) -> str | None:
        """What was read and what was tried contradict each other: how; None if they do not."""
        if self.probed is None or "unknown" in (self.probed.verdict, passive := _sum(self._comparable)):
            return None
        if passive == self.probed.verdict:
            return None
        return f"by what was read: {passive}; tried in its place: {self.probed.says}"

    @property
    def _comparable(self) -> tuple[Gate, ...]:
        return tuple(gate for gate in self.passive if not _not_probed(gate))

    def as_json(self) -> dict[str, Any]:
        """The object of ``gpuiso explain --json``."""
        return {
            "gpuiso": "explain/1",
            **({"pid": self.pid} if self.cgroup is None else {"cgroup": self.cgroup}),
            "path": self.node,
            "access": self.access,
            "verdict": self.verdict,
            "gates": [gate.as_json() for gate in self.gates],
            "first_denial": self.first_denial,
            "notes": list(self.notes),
        }


def _not_probed(gate: Gate) -> bool:
    return gate.gate in _NOT_PROBED or gate.rule == USER_NAMESPACE_MOUNT


def _sum(gates: tuple[Gate, ...]) -> Verdict:
    verdicts = {gate.verdict for gate in gates}
    return "deny" if "deny" in verdicts else "unknown" if "unknown" in verdicts else "allow"
