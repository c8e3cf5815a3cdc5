# SPDX-License-Identifier: Apache-2.0
"""A denial under examination: nodes that one gate keeps a process from, and what a deeper cause has to say of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gpuiso.devfilter.interpret import Access
from gpuiso.devfilter.levels import Level, ProgramVerdict, judge
from gpuiso.doctor.checks.access_words import evidence_of, was_tried
from gpuiso.doctor.finding import Evidence, Fix, Rule
from gpuiso.doctor.gates import Gate
from gpuiso.doctor.machine import Subject
from gpuiso.host.containers import Container
from gpuiso.host.protocol import Node
from gpuiso.policy.rule import mask

__all__ = ["Cause", "Denial"]

_UNIT = re.compile(r"([^/]+\.(?:service|scope|slice))$")


@dataclass(frozen=True, slots=True)
class Cause:
    """Why the gate is closed. ``says`` are whole sentences; what the process notices is added to them."""

    rule: Rule
    says: str
    evidence: tuple[Evidence, ...]
    fix: tuple[Fix, ...]
    title: str | None = None


@dataclass(frozen=True, slots=True)
class Denial:
    """``paths`` are nodes that are right on the host and that ``gate`` keeps ``subject`` from."""

    subject: Subject
    gate: Gate
    paths: tuple[str, ...]

    @property
    def who(self) -> str:
        return f"{self.subject.comm} (pid {self.subject.pid})"

    @property
    def nodes(self) -> str:
        return ", ".join(self.paths)

    @property
    def by_filter(self) -> bool:
        """Whether a device filter denies, and it is known which cgroup's."""
        return self.gate.gate in ("cgroup-v2", "cgroup-v1") and not was_tried(self.gate)

    @property
    def container(self) -> Container | None:
        """The container the process is in."""
        return self.subject.container

    @property
    def unit(self) -> str | None:
        """The unit that the filter belongs to; for a node that is not there, the service the process is in."""
        if self.by_filter:
            match = _UNIT.search(self.gate.where)
            return None if match is None else match[1]
        return self.subject.unit

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """What the denial itself was read from."""
        return tuple(evidence_of(self.subject, self.gate, self.paths))

    def numbered(self) -> Iterator[tuple[str, Node]]:
        """The nodes with their numbers: in the process's view, or else the host's."""
        for path in self.paths:
            node = self.subject.stat(path) or self.subject.host.stat(path)
            if node is not None and node.type in ("b", "c"):
                yield path, node

    def programs(self) -> tuple[ProgramVerdict, ...]:
        """What each program of the denying cgroup says to the first node. :raises Unknown: they cannot be read."""
        node = next((node for _, node in self.numbered()), None)
        host = self.subject.host
        programs = host.device_programs(self.gate.where)
        if node is None or not programs:
            return ()
        asked = Access("b" if node.type == "b" else "c", node.major or 0, node.minor or 0, mask("rw"))
        level = Level(self.gate.where, programs)
        return judge([level], asked, maps=host.bpf_map, helpers=host.kernel_function).levels[0].programs
