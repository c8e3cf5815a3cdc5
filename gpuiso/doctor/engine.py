# SPDX-License-Identifier: Apache-2.0
"""Runs the checks over a host and sums up what they say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from gpuiso.doctor.finding import Finding, NotExamined, Rule
from gpuiso.doctor.machine import Machine, Subject
from gpuiso.doctor.registry import machine_checks, process_checks
from gpuiso.errors import NotFound, Unknown
from gpuiso.gpu.as_json import inventory_json
from gpuiso.gpu.holders import GPU_NODES
from gpuiso.gpu.visibility.names import VARIABLES
from gpuiso.host import process
from gpuiso.host.protocol import Host

__all__ = ["Report", "examine"]

_ORDER = {"error": 0, "warning": 1, "info": 2}
_NAMES = tuple(name.encode() for name in VARIABLES)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Report:
    """What was found, most severe first, what could not be examined, and what was looked at."""

    machine: Machine
    findings: tuple[Finding, ...]
    not_examined: tuple[NotExamined, ...]
    processes: tuple[int, ...]

    @property
    def bad(self) -> bool:
        """Whether anything is an error or a warning."""
        return any(finding.severity != "info" for finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        """The object of ``gpuiso doctor --json``."""
        host = self.machine.host
        return {
            "gpuiso": "doctor/1",
            "host": {
                "name": host.name,
                "kernel": host.kernel,
                "cgroup_mode": host.cgroup_mode,
                "systemd": host.systemd,
            },
            "verdict": "findings" if self.bad else "healthy" if self.machine.inventory.gpus else "no-gpu",
            "findings": [finding.as_json() for finding in self.findings],
            "not_examined": [entry.as_json() for entry in self.not_examined],
            "processes": list(self.processes),
            "inventory": inventory_json(self.machine.inventory),
        }


class _Run:
    """Collects findings; what raises Unknown is noted and does not stop the rest."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.missing: dict[tuple[str, str, int | None], list[str]] = {}

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

    def note(self, what: str, why: str) -> None:
        self.missing.setdefault((what, why, None), [])

    def not_examined(self) -> tuple[NotExamined, ...]:
        return tuple(
            NotExamined(tuple(sorted(set(rules))), what, why, pid) for (what, why, pid), rules in self.missing.items()
        )


def examine(host: Host, *, pid: int | None = None, probe: bool = False) -> Report:
    """Everything the doctor has to say about a host, or about one process and the host as far as it matters to it.

    Without ``pid``, every process that holds or selects a GPU is looked at as well. With ``probe``, accesses are tried
    as well as reasoned about (see :mod:`gpuiso.host.probe`).

    :raises NotFound: ``pid`` does not exist, or ended before its examination did.
    """
    machine = Machine(host)
    run = _Run()
    if pid is not None:
        started = _started(host, pid)
        _process(run, Subject(machine, pid, asked=True, probe=probe))
        if host.live and _started(host, pid) != started:
            raise NotFound(f"process {pid} ended while it was examined")
        subjects: tuple[int, ...] = (pid,)
    else:
        subjects = _interesting(machine, run)
        for number in subjects:
            try:
                _process(run, Subject(machine, number, asked=False, probe=probe))
            except NotFound:
                continue  # it ended meanwhile; nobody asked for it by name
    for check in machine_checks():
        run.check(check.rules, check.function, machine)
    findings = sorted(run.findings, key=lambda finding: _ORDER[finding.severity])
    return Report(machine, tuple(findings), run.not_examined(), subjects)


def _started(host: Host, pid: int) -> int | None:
    """When a process started, None where a record does not tell. :raises NotFound: there is no such process."""
    process.require(host, pid)
    try:
        return process.start_time(host, pid)
    except Unknown:
        return None


def _process(run: _Run, subject: Subject) -> None:
    for check in process_checks():
        run.check(check.rules, check.function, subject, subject.pid)


def _interesting(machine: Machine, run: _Run) -> tuple[int, ...]:
    """The processes that hold a GPU node or carry a variable that selects GPUs."""
    host = machine.host
    if not machine.inventory.gpus:
        return ()  # a variable that selects GPUs selects nothing here, and harms nobody
    try:
        pids = host.pids()
    except Unknown as error:
        run.note(error.what, error.why)
        return ()
    found = []
    closed = 0
    for pid in pids:
        answers = [_unless_unknown(question, host, pid) for question in (_selects, _holds)]
        if any(answers):
            found.append(pid)
        elif None in answers:
            closed += 1
    if closed:
        run.note(f"{closed} of {len(pids)} processes", "not permitted to read them, or not recorded")
    return tuple(found)


def _selects(host: Host, pid: int) -> bool:
    data = host.read(f"/proc/{pid}/environ")
    return data is not None and any(name in data for name in _NAMES)


def _holds(host: Host, pid: int) -> bool:
    return bool(process.device_descriptors(host, pid, GPU_NODES))


def _unless_unknown(question: Callable[[Host, int], bool], host: Host, pid: int) -> bool | None:
    try:
        return question(host, pid)
    except NotFound:
        return False
    except Unknown:
        return None
