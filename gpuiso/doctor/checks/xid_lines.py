# SPDX-License-Identifier: Apache-2.0
"""Xid and SXid lines of the kernel's log, with the action that NVIDIA's catalogue asks for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from gpuiso.doctor.checks.gpu_state import (
    KERNEL_LOG,
    REBOOT,
    gpu_at,
    gpu_target,
    may_have_nvidia,
    named,
    recovery_action,
    reset_fix,
    sentence,
    settled,
    span,
)
from gpuiso.doctor.checks.lost_gpus import lost_addresses
from gpuiso.doctor.finding import Evidence, Finding, Fix, Rule, Severity
from gpuiso.doctor.kernel_log import Sxid, XidEvent
from gpuiso.doctor.machine import Machine
from gpuiso.doctor.registry import machine_check
from gpuiso.doctor.xid import BUS_LOST, CATALOGUE, RECOVERY, RECOVERY_CHANGED, Xid, look_up
from gpuiso.gpu.model import Gpu

__all__ = ["unsettled_reset", "unsettled_reset_of"]

FABRIC_GUIDE = "https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/index.html"

XID = Rule(
    "GPU-XID",
    "error",
    "The driver reported an Xid",
    "the kernel log holds Xid errors of a GPU; each is told with the action of NVIDIA's catalogue",
    (CATALOGUE, "https://docs.nvidia.com/deploy/xid-errors/index.html"),
)
SXID = Rule(
    "GPU-SXID",
    "error",
    "An NVSwitch reported an SXid",
    "the kernel log holds SXid errors of an NVSwitch",
    (FABRIC_GUIDE,),
)

_WANTED = re.compile(r" to 0x(?P<action>[0-9a-fA-F]+) \((?P<words>[^)]*)\)")
_NVLINK5 = range(144, 151)
#: SXids after which the Fabric Manager guide has the host rebooted, whatever the line calls them.
_SXID_REBOOT = frozenset({11001, 11004, 11009, 12028, 19084})
_SHOWN = 8  # links that a text names


def _grouped(events: Iterable[XidEvent]) -> dict[tuple[str, int], list[XidEvent]]:
    groups: dict[tuple[str, int], list[XidEvent]] = {}
    for event in events:
        groups.setdefault((event.address, event.number), []).append(event)
    return groups


def _severity(entry: Xid, events: Sequence[XidEvent]) -> Severity:
    """The action's; of NVLink 5 errors each line says itself whether it is fatal."""
    if entry.number in _NVLINK5:
        if any(re.search(r"\bFatal\b", event.rest) for event in events):
            return "error"
        if all(re.search(r"\bNon-?fatal\b", event.rest) for event in events):
            return "info"
    return entry.action.severity


def _wanted(events: Sequence[XidEvent]) -> tuple[int, str] | None:
    """What the last Xid 154 asks for: the action's number and the driver's words."""
    match = _WANTED.search(events[-1].rest) if events else None
    return None if match is None else (int(match["action"], 16), match["words"])


def unsettled_reset(machine: Machine) -> bool:
    """Whether the log holds an Xid of any GPU that is of no use since."""
    return any(unsettled_reset_of(machine, address) for address in {event.address for event in machine.driver_log.xids})


def unsettled_reset_of(machine: Machine, address: str | None, *, but: int | None = None) -> bool:
    """Whether the log holds an Xid, other than ``but``, after which this GPU needs a reset that it did not get."""
    for (other, number), events in _grouped(machine.driver_log.xids).items():
        if other != address or number == but or not look_up(number).action.needs_reset:
            continue
        if number == RECOVERY_CHANGED and (_wanted(events) or (0, ""))[0] == 0:
            continue
        if settled(machine, gpu_at(machine, address), address, events[-1].message) is None:
            return True
    return False


@machine_check(XID)
def xids(machine: Machine) -> Iterator[Finding]:
    """One finding for each GPU and number. A GPU that is off the bus has a rule of its own."""
    if not may_have_nvidia(machine):
        return
    log = machine.driver_log
    groups = _grouped(log.xids)
    lost = lost_addresses(machine) if groups else frozenset()
    for (address, number), events in groups.items():
        if number == BUS_LOST or (number == RECOVERY_CHANGED and address in lost):
            continue
        gpu = gpu_at(machine, address)
        wishes = groups.get((address, RECOVERY_CHANGED), [])
        if number != RECOVERY_CHANGED:
            yield _xid(machine, gpu, events, wishes, lost=address in lost)
        elif recovery_action(machine, gpu) is None and not unsettled_reset_of(machine, address, but=number):
            # Otherwise GPU-RECOVERY-ACTION says what the driver wants now, or the other Xid's finding does.
            yield from _changed(machine, gpu, events)


def _xid(
    machine: Machine, gpu: Gpu | None, events: Sequence[XidEvent], wishes: Sequence[XidEvent], *, lost: bool
) -> Finding:
    first, last = events[0], events[-1]
    entry = look_up(last.number)
    severity = _severity(entry, events)
    evidence = [Evidence(KERNEL_LOG, last.message.quoted)]
    times = span(machine, first.message, last.message, len(events))
    what = f"Xid {entry.number}" + (f" ({entry.name})" if entry.name else "")
    cause = f"{sentence(named(gpu, last.address))} reported {what} {times}. NVIDIA's action: {entry.action.word}."
    fix = [Fix(entry.action.advice)]
    past = None if severity == "info" else settled(machine, gpu, last.address, last.message)
    pending = recovery_action(machine, gpu)
    if past is not None:
        severity, cause = "info", f"{cause} That is past."
        evidence.append(past)
        fix = []
    elif lost and severity != "info":
        severity, fix = "info", []
        cause += " The GPU is off the bus: see GPU-BUS-LOST."
    elif severity == "error" and pending:
        severity = "info"
        cause += f" The driver now asks for {RECOVERY.get(pending, f'action {pending}')}: see GPU-RECOVERY-ACTION."
        fix = []
    elif entry.action.needs_reset:
        wanted = _wanted(wishes)
        if wanted is not None and wishes[-1].message.place >= first.message.place and wanted[0]:
            cause += f" The driver asks for {RECOVERY.get(wanted[0], wanted[1])}."
            evidence.append(Evidence(KERNEL_LOG, wishes[-1].message.quoted))
            fix = _fixes(machine, gpu, wanted[0])
        else:
            fix = [reset_fix(machine, gpu)] if entry.action.word == "RESET_GPU" else [*fix, REBOOT]
    return XID.finding(
        cause,
        evidence=evidence,
        fix=fix,
        target=gpu_target(gpu, last.address),
        severity=severity,
        title=f"Xid {entry.number}: {entry.name}" if entry.name else f"The driver reported Xid {entry.number}",
    )


def _fixes(machine: Machine, gpu: Gpu | None, action: int) -> list[Fix]:
    return [REBOOT] if action in (2, 7) else [reset_fix(machine, gpu)]


def _changed(machine: Machine, gpu: Gpu | None, events: Sequence[XidEvent]) -> Iterator[Finding]:
    """Xid 154 alone: the last one says what the driver wants, and "nothing" ends the matter."""
    last = events[-1]
    wanted = _wanted(events)
    if wanted is not None and wanted[0] == 0:
        return
    evidence = [Evidence(KERNEL_LOG, last.message.quoted)]
    past = settled(machine, gpu, last.address, last.message)
    action, words = wanted or (1, last.rest)
    severity: Severity = "warning" if action in (3, 4) else "error"
    if past is not None:
        severity = "info"
        evidence.append(past)
    yield XID.finding(
        f"The driver asked for {RECOVERY.get(action, words)} ({words}): {named(gpu, last.address)}."
        + (" That is past." if past is not None else ""),
        evidence=evidence,
        fix=[] if past is not None else _fixes(machine, gpu, action),
        target=gpu_target(gpu, last.address),
        severity=severity,
        title="Xid 154: the driver wants a GPU recovered",
    )


@machine_check(SXID)
def sxids(machine: Machine) -> Iterator[Finding]:
    """One finding for each switch and number. Switches report much that heals by itself: fatal ones count."""
    if not may_have_nvidia(machine):
        return
    log = machine.driver_log
    groups: dict[tuple[str, int, str], list[Sxid]] = {}
    for event in log.sxids:
        groups.setdefault((event.address, event.number, event.kind), []).append(event)
    for (_, number, kind), events in groups.items():
        past = log.loaded is not None and log.loaded.place > events[-1].message.place
        severity: Severity = "error" if kind == "Fatal" else "warning" if number in _SXID_REBOOT else "info"
        yield _sxid(machine, events, "info" if past else severity, past=past)


def _sxid(machine: Machine, events: Sequence[Sxid], severity: Severity, *, past: bool) -> Finding:
    first, last = events[0], events[-1]
    times = span(machine, first.message, last.message, len(events))
    kind = {"Fatal": "a fatal", "Non-fatal": "a non-fatal"}.get(last.kind, "an")
    cause = f"NVSwitch {last.switch} ({last.address}) reported {kind} error, SXid {last.number}, {times}."
    if past:
        cause += " The driver was loaded again since."
    links = sorted({match[0] for event in events if (match := re.search(r"Link \d+", event.message.text))})
    if links:
        cause += f" Links: {', '.join(links[:_SHOWN])}{', ...' if len(links) > _SHOWN else ''}."
    if severity == "info":
        fix = [Fix("Nothing now; if it repeats for one link, have that link's hardware checked")]
    else:
        fix = [
            Fix(
                "Drain the host, stop the Fabric Manager and what uses the GPUs, reset all GPUs and switches together"
                " (on most systems: reboot)",
                REBOOT.command,
            ),
            Fix("Look the number up in the Fabric Manager guide, and have the switch checked if it comes back"),
        ]
    return SXID.finding(
        cause,
        evidence=[Evidence(KERNEL_LOG, last.message.quoted)],
        fix=fix,
        severity=severity,
        title=f"An NVSwitch reported SXid {last.number}",
    )
