# SPDX-License-Identifier: Apache-2.0
"""Runs the checks over a host and sums up what they say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from gpuiso.doctor.finding import Finding, NotExamined, Rule, Target
from gpuiso.doctor.machine import Machine, Subject
from gpuiso.doctor.placing import alike, merged, placed
from gpuiso.doctor.registry import machine_checks, process_checks
from gpuiso.doctor.scope import container_scope, gpu_users, process_scope, unit_scope
from gpuiso.doctor.scope import everything as all_scope
from gpuiso.doctor.unsure import unsure_rules
from gpuiso.errors import NotFound, Unknown
from gpuiso.gpu.as_json import inventory_json
from gpuiso.gpu.inventory import driver_is_hidden
from gpuiso.host import process
from gpuiso.host.protocol import Host

__all__ = ["Report", "examine"]

_ORDER = {"error": 0, "warning": 1, "info": 2}
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Report:
    """What was found, most severe first, what could not be examined, and what was looked at."""

    machine: Machine
    findings: tuple[Finding, ...]
    not_examined: tuple[NotExamined, ...]
    processes: tuple[int, ...]
    unsure: tuple[str, ...] = ()
    """The rules about errors without which nobody can call what was asked about healthy, though they could be told."""
    hidden: bool = False
    """Whether NVIDIA's driver is loaded, but what it tells of its GPUs cannot be seen."""

    @property
    def bad(self) -> bool:
        """Whether anything is an error or a warning."""
        return any(finding.severity != "info" for finding in self.findings)

    @property
    def verdict(self) -> Literal["findings", "healthy", "incomplete", "no-gpu"]:
        """``incomplete``: nothing was found, but not because all that matters was looked at."""
        if self.bad:
            return "findings"
        if self.hidden or (self.unsure and self.machine.inventory.gpus):
            return "incomplete"
        return "healthy" if self.machine.inventory.gpus else "no-gpu"

    def as_json(self) -> dict[str, Any]:
        """The object of ``gpuiso doctor --json``."""
        return {
            "gpuiso": "doctor/1",
            "host": self.machine.host_json(),
            "verdict": self.verdict,
            "findings": [finding.as_json() for finding in self.findings],
            "not_examined": [entry.as_json() for entry in self.not_examined],
            "processes": list(self.processes),
            "inventory": inventory_json(self.machine.inventory),
        }


class _Run:
    """Collects findings; what raises Unknown is noted and does not stop the rest."""

    def __init__(self, heard: Callable[[Sequence[Finding]], None] | None) -> None:
        self.findings: list[Finding] = []
        self.missing: dict[tuple[str, str, int | None], list[str]] = {}
        self._heard = heard

    def hear(self) -> None:
        if self._heard is not None:
            self._heard(self.findings)

    def check(
        self,
        rules: Iterable[Rule],
        function: Callable[[_T], Iterator[Finding]],
        argument: _T,
        pid: int | None = None,
    ) -> None:
        try:
            self.findings.extend(function(argument))
        except Unknown as error:
            self.missing.setdefault((error.what, error.why, pid), []).extend(rule.id for rule in rules)

    def machine(self, machine: Machine) -> None:
        """All checks of the host."""
        for check in machine_checks():
            self.check(check.rules, check.function, machine)
            self.hear()

    def process(self, subject: Subject, asked: Target | None, others: Sequence[int] = ()) -> None:
        """All checks of a process, told to be about what was ``asked`` about, else about the process's own place.

        ``others`` are processes that look the same.
        """
        before = len(self.findings)
        for check in process_checks():
            self.check(check.rules, check.function, subject, subject.pid)
        self.findings[before:] = [alike(placed(each, subject.target, asked), others) for each in self.findings[before:]]
        self.hear()

    def put_behind(self, other: _Run) -> None:
        """Takes over what another run found, as if it had been run after this one."""
        self.findings += other.findings
        for key, rules in other.missing.items():
            self.missing.setdefault(key, []).extend(rules)

    def note(self, what: str, why: str) -> None:
        self.missing.setdefault((what, why, None), [])

    def not_examined(self) -> tuple[NotExamined, ...]:
        return tuple(
            NotExamined(tuple(sorted(set(rules))), what, why, pid) for (what, why, pid), rules in self.missing.items()
        )


def examine(
    host: Host,
    *,
    pid: int | None = None,
    container: str | None = None,
    unit: str | None = None,
    everything: bool = False,
    probe: bool = False,
    heard: Callable[[Sequence[Finding]], None] | None = None,
) -> Report:
    """Everything the doctor has to say about a host, or about a part of it and the host as far as it matters to that.

    That part is one process, the processes of one ``container`` (its id, the beginning of that, or its name) or those
    of one systemd ``unit``; at most one is given. Without it, every process that holds or selects a GPU is looked at
    as well, and with ``everything`` every container and every unit besides. With ``probe``, accesses are tried as well
    as reasoned about (see :mod:`gpuiso.host.probe`). ``heard`` is called again and again with what was found of the
    host, then of the host and its processes, for who may not have the time to wait for the end.

    :raises NotFound: what was asked about does not exist, does not run, or ended before its examination did.
    """
    machine = Machine(host)
    host_run = _Run(heard)
    run = _Run(None if heard is None else lambda findings: heard([*findings, *host_run.findings]))
    if pid is not None:
        scope = process_scope(host, pid)
    elif container is not None:
        scope = container_scope(machine, container)
    elif unit is not None:
        scope = unit_scope(machine, unit)
    else:
        scope = (all_scope if everything else gpu_users)(machine, run.note)
    started = None if scope.first is None else _started(host, scope.first)
    host_run.machine(machine)
    examined = []
    for number in scope.pids:
        subject = Subject(machine, number, asked=scope.asked, probe=probe)
        try:
            run.process(subject, scope.target, scope.alike.get(number, ()))
        except NotFound:
            if number == scope.first:
                raise NotFound(f"{scope.what} ended while it was examined") from None
            continue  # it ended meanwhile; nobody asked for it by name
        examined += [number, *scope.alike.get(number, ())]
    if host.live and scope.first is not None and _started(host, scope.first) != started:
        raise NotFound(f"{scope.what} ended while it was examined")
    if scope.asked and not examined:
        raise NotFound(f"{scope.what} ended while it was examined")
    run.put_behind(host_run)
    findings = sorted(merged(run.findings), key=lambda finding: _ORDER[finding.severity])
    hidden = driver_is_hidden(host) and not machine.inventory.gpus
    if hidden:
        run.note(
            "NVIDIA's GPUs", "the driver is loaded (/proc/devices), but its /proc and the PCI devices cannot be seen"
        )
    missing = run.not_examined()
    return Report(
        machine,
        tuple(findings),
        missing,
        tuple(examined),
        unsure=unsure_rules(machine, missing, asked=scope.asked),
        hidden=hidden,
    )


def _started(host: Host, pid: int) -> int | None:
    """When a process started, None where a record does not tell, -1 if there is no such process any more."""
    try:
        return process.start_time(host, pid)
    except Unknown:
        return None
    except NotFound:
        return -1
