# SPDX-License-Identifier: Apache-2.0
"""A driver that does not come back: processes asleep in it for good, NVML without an answer."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from gpuiso.doctor.checks.gpu_state import (
    KERNEL_LOG,
    REBOOT,
    USER_HZ,
    may_have_nvidia,
    nvml_entries,
    uptime,
)
from gpuiso.doctor.checks.lost_gpus import lost_addresses
from gpuiso.doctor.checks.nvlink_uptime import UPTIME_HANG
from gpuiso.doctor.checks.xid_lines import unsettled_reset
from gpuiso.doctor.finding import Evidence, Finding, Fix, Rule, Severity, Target
from gpuiso.doctor.machine import Machine
from gpuiso.doctor.registry import machine_check
from gpuiso.errors import NotFound, Unknown
from gpuiso.host import process
from gpuiso.host.protocol import Host

__all__: list[str] = []

HANG_DSTATE = Rule(
    "GPU-HANG-DSTATE",
    "error",
    "The GPU driver hangs",
    "processes sleep uninterruptibly (state D) in NVIDIA's driver, or NVML gives no answer",
    ("https://github.com/leptonai/gpud/pull/117", "https://github.com/NVIDIA/nvidia-docker/issues/1553"),
)
NO_ANSWER = "no answer within"
_IN_DRIVER = re.compile(r"\[nvidia|\b(?:nvidia_|nvkms_|nv_(?!dimm|me)|nv[A-Z]|nvlink|nvswitch|uvm_)\w*|os_acquire_\w+")
_DRIVER_PROGRAMS = ("nvidia-", "nv-fabric", "nv-hostengine")
_KTHREADD = 2
_YOUNG = 60.0  # seconds: a program that has just started may wait for a GPU to be set up
_LOOK_AGAIN = 0.2  # seconds between two looks at a live process
_SHOWN = 8  # processes that a finding names


@dataclass(frozen=True, slots=True)
class _Sleeper:
    """A process in state D, and what says that it is the driver it waits for."""

    pid: int
    comm: str
    evidence: Evidence
    certain: bool  # the kernel itself calls it hung


@dataclass(slots=True)
class _Hang:
    sleepers: list[_Sleeper] = field(default_factory=list)
    nvml: Unknown | None = None
    missing: Unknown | None = None


def _state(host: Host, pid: int) -> str | None:
    """The state letter; None for a process that ended or of which the host does not tell."""
    try:
        text = host.text(f"/proc/{pid}/stat")
        if text is not None and ")" in text:
            return text[text.rindex(")") + 1 :].split()[0]
    except (Unknown, IndexError):
        pass  # a record may hold status alone
    try:
        return process.status(host, pid).state
    except (NotFound, Unknown):
        return None


def _text(host: Host, path: str) -> str:
    try:
        return host.text(path) or ""
    except Unknown:
        return ""


def _place(host: Host, pid: int) -> Evidence | None:
    """Where in the driver a process sleeps: by its stack, which root may read, or by the function it waits in."""
    for name in ("stack", "wchan"):
        for line in _text(host, f"/proc/{pid}/{name}").splitlines():
            match = _IN_DRIVER.search(line)
            if match is not None:
                return Evidence(f"/proc/{pid}/{name}", line.strip())
    return None


def _is_kernel_thread(host: Host, pid: int) -> bool:
    try:
        return pid == _KTHREADD or process.status(host, pid).ppid == _KTHREADD
    except (NotFound, Unknown):
        return False


def _is_young(machine: Machine, pid: int) -> bool:
    try:
        return uptime(machine) - process.start_time(machine.host, pid) / USER_HZ < _YOUNG
    except (NotFound, Unknown):
        return False


def _sleepers(machine: Machine) -> list[_Sleeper]:
    """Processes in state D because of the driver. An ordinary wait is over at a second look."""
    host = machine.host
    asleep = [pid for pid in host.pids() if _state(host, pid) == "D"]
    reported = _reported(machine)
    found = []
    for pid in asleep:
        comm = process.command_name(host, pid)
        place = _place(host, pid)
        known = reported.get(pid)
        if place is None and comm.startswith(_DRIVER_PROGRAMS) and not _is_kernel_thread(host, pid):
            place = Evidence(f"/proc/{pid}/stat", f"{comm} is in state D")
        if place is None and known is not None:
            place = known
        if place is not None and (known is not None or not _is_young(machine, pid)):
            found.append(_Sleeper(pid, comm, place, known is not None))
    if found and host.live:
        time.sleep(_LOOK_AGAIN)
        found = [sleeper for sleeper in found if _state(host, sleeper.pid) == "D"]
    return found


def _reported(machine: Machine) -> dict[int, Evidence]:
    """The tasks that the kernel reported as hung in the driver, by pid; nothing where its log is not known."""
    try:
        hung = machine.driver_log.hung
    except Unknown:
        return {}
    return {
        task.pid: Evidence(KERNEL_LOG, task.message.quoted)
        for task in hung
        if task.in_driver or task.comm.startswith(_DRIVER_PROGRAMS)
    }


def _hang(machine: Machine) -> _Hang:
    hang = _Hang()
    try:
        nvml_entries(machine)
    except Unknown as error:
        if NO_ANSWER in error.why:
            hang.nvml = error
    try:
        hang.sleepers = _sleepers(machine)
    except Unknown as error:
        hang.missing = error
    # A record may lack the process that the kernel's log names.
    seen = {sleeper.pid for sleeper in hang.sleepers}
    for pid, evidence in _reported(machine).items():
        if pid not in seen and _not_recorded(machine.host, pid):
            hang.sleepers.append(_Sleeper(pid, "", evidence, False))
    return hang


def _not_recorded(host: Host, pid: int) -> bool:
    try:
        host.text(f"/proc/{pid}/stat")
    except Unknown:
        return True
    return False


def _gpu_in_use(machine: Machine) -> bool:
    """Whether a process has a GPU open: the driver then has it set up, and NVML has nothing to wait for."""
    try:
        return any(re.fullmatch(r"/dev/nvidia\d+", holder.node) for holder in machine.holders)
    except Unknown:
        return False


@machine_check(HANG_DSTATE)
def hanging(machine: Machine) -> Iterator[Finding]:
    """One finding for the host: one hanging call holds the driver's lock, and all others queue behind it."""
    if not may_have_nvidia(machine):
        return
    hang = _hang(machine)
    if not hang.sleepers and hang.nvml is None:
        if hang.missing is not None:
            raise hang.missing
        return
    told = _cause_told(machine)
    if told and not hang.sleepers:
        return
    certain = any(sleeper.certain for sleeper in hang.sleepers)
    silent = hang.nvml is not None and (bool(hang.sleepers) or _gpu_in_use(machine))
    severity: Severity = "info" if told else "error" if certain or silent else "warning"
    yield _hanging(hang, severity, told)


def _cause_told(machine: Machine) -> str | None:
    """The rule whose finding is the cause of a hang."""
    try:
        if lost_addresses(machine):
            return "GPU-BUS-LOST"
        if machine.driver_log.link_mask:
            return UPTIME_HANG.id
        return "GPU-XID" if unsettled_reset(machine) else None
    except Unknown:
        return None


def _hanging(hang: _Hang, severity: Severity, told: str | None) -> Finding:
    evidence = [sleeper.evidence for sleeper in hang.sleepers[:_SHOWN]]
    parts = []
    if hang.sleepers:
        who = ", ".join(f"{s.comm or 'a process'} (pid {s.pid})" for s in hang.sleepers[:_SHOWN])
        more = len(hang.sleepers) - _SHOWN
        parts.append(
            f"{who}{f' and {more} more' if more > 0 else ''} {'sleep' if len(hang.sleepers) > 1 else 'sleeps'}"
            " uninterruptibly in NVIDIA's driver; no signal, not even SIGKILL, ends that."
        )
    if hang.nvml is not None:
        evidence.append(Evidence("NVML", hang.nvml.why))
        parts.append("NVML, which answers within a second on a host in order, gave no answer.")
    if told is not None:
        parts.append(f"The cause is most likely what {told} tells.")
    fix = []
    if not hang.sleepers:
        fix.append(
            Fix(
                "Ask again: without persistence the first call sets every GPU up, which takes seconds",
                "timeout 60 nvidia-smi -L",
            )
        )
    else:
        pids = " ".join(f"/proc/{sleeper.pid}/stack" for sleeper in hang.sleepers[:_SHOWN])
        fix.append(Fix("Keep the stacks for a bug report, before anything else", f"sudo tail -n +1 {pids}"))
    fix.append(Fix("Start nothing more on the GPUs; if it stays so, drain this host and reboot it", REBOOT.command))
    return HANG_DSTATE.finding(
        " ".join(parts),
        evidence=evidence,
        fix=fix,
        target=Target(pid=hang.sleepers[0].pid) if len(hang.sleepers) == 1 else None,
        severity=severity,
        title=None if hang.sleepers else "NVML does not answer",
    )
