# SPDX-License-Identifier: Apache-2.0
"""GPUs that left the PCI bus, and what the driver wants done to those that are there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuiso.doctor.checks.gpu_state import (
    KERNEL_LOG,
    REBOOT,
    answers,
    gpu_at,
    gpu_target,
    may_have_nvidia,
    named,
    nvml_entries,
    nvml_entry,
    reset_fix,
    sentence,
    settled,
    span,
)
from gpuiso.doctor.finding import Evidence, Finding, Fix, Rule, Severity
from gpuiso.doctor.kernel_log import Message
from gpuiso.doctor.machine import Machine
from gpuiso.doctor.registry import machine_check
from gpuiso.doctor.xid import BUS_LOST as XID_BUS_LOST
from gpuiso.doctor.xid import CATALOGUE, RECOVERY
from gpuiso.errors import Unknown
from gpuiso.gpu.model import Gpu
from gpuiso.gpu.pci import normal_address

__all__ = ["lost_addresses"]

_HEADER = 64  # bytes of PCI configuration space that every function has

BUS_LOST = Rule(
    "GPU-BUS-LOST",
    "error",
    "A GPU has fallen off the PCI bus",
    "a GPU no longer answers on PCIe (Xid 79, configuration space reads 0xff, NVML: GPU is lost)",
    (
        "https://github.com/NVIDIA/open-gpu-kernel-modules/issues/387",
        "https://github.com/NVIDIA/open-gpu-kernel-modules/issues/507",
        CATALOGUE,
    ),
)
RECOVERY_ACTION = Rule(
    "GPU-RECOVERY-ACTION",
    "error",
    "The driver wants a GPU recovered",
    "NVML's recovery action of a GPU is not none: it has to be drained, reset, or the host rebooted",
    ("https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/error-recovery-and-response-flags.html",),
)


@dataclass(slots=True)
class _Case:
    """What speaks for one GPU being lost. ``now``: it is lost at this moment, not only once."""

    evidence: list[Evidence] = field(default_factory=list)
    now: bool = False
    last: Message | None = None


def _log_messages(machine: Machine) -> dict[str | None, list[Message]]:
    log = machine.driver_log
    found: dict[str | None, list[Message]] = {}
    for event in log.xids:
        if event.number == XID_BUS_LOST:
            found.setdefault(event.address, []).append(event.message)
    for address, message in log.lost:
        found.setdefault(address, []).append(message)
    return {address: sorted(messages, key=lambda message: message.place) for address, messages in found.items()}


def _log_cases(machine: Machine, cases: dict[str | None, _Case]) -> None:
    for address, messages in _log_messages(machine).items():
        case = cases.setdefault(address, _Case())
        case.last = messages[-1]
        times = span(machine, messages[0], messages[-1], len(messages))
        case.evidence.append(Evidence(KERNEL_LOG, f"{messages[-1].quoted} ({times})"))


def _config_cases(machine: Machine, cases: dict[str | None, _Case]) -> None:
    for gpu in machine.inventory.gpus:
        if gpu.vendor != "nvidia":
            continue
        base = f"/sys/bus/pci/devices/{gpu.pci_address}"
        if machine.host.text(f"{base}/power/runtime_status") == "suspended\n":
            continue  # to read its configuration would wake it
        data = machine.host.read(f"{base}/config")
        if data is not None and len(data) >= _HEADER and data[:_HEADER] == b"\xff" * _HEADER:
            case = cases.setdefault(gpu.pci_address, _Case())
            case.now = True
            case.evidence.append(Evidence(f"{base}/config", f"{_HEADER} bytes of 0xff: no device answers"))


def _is_lost(text: str) -> bool:
    """Whether an error NVML gives in place of a GPU means that it is gone; others have rules of their own."""
    words = text.lower()
    return "permission" not in words and "reset" not in words


def _nvml_cases(machine: Machine, cases: dict[str | None, _Case]) -> None:
    entries = nvml_entries(machine)
    for entry in entries:
        error = entry.get("error")
        if error is None or not _is_lost(error):
            continue
        case = cases.setdefault(_address_of(machine, entry, len(entries)), _Case())
        case.now = True
        case.evidence.append(Evidence("NVML", f"GPU {entry['index']}: {error}"))


def _address_of(machine: Machine, entry: Mapping[str, Any], count: int) -> str | None:
    """NVML names a GPU it cannot reach by its index alone, which counts as ours does where none is left out."""
    if entry.get("pci_bus_id"):
        return normal_address(entry["pci_bus_id"])
    gpus = machine.nvidia
    return gpus[entry["index"]].pci_address if count == len(gpus) and entry["index"] < count else None


def _cases(machine: Machine) -> tuple[dict[str | None, _Case], Unknown | None]:
    """Every case, and the first source that could not be read."""
    cases: dict[str | None, _Case] = {}
    missing: Unknown | None = None
    for source in (_log_cases, _config_cases, _nvml_cases):
        try:
            source(machine, cases)
        except Unknown as error:
            missing = missing or error
    nameless = cases.get(None)
    if nameless is not None and len(cases) == 2:
        # One source says which GPU, another only that one is lost.
        del cases[None]
        other = next(iter(cases.values()))
        other.evidence.extend(nameless.evidence)
        other.now |= nameless.now
        other.last = other.last or nameless.last
    return cases, missing


def _past(machine: Machine, gpu: Gpu | None, address: str | None, case: _Case) -> Evidence | None:
    return None if case.now or case.last is None else settled(machine, gpu, address, case.last)


def lost_addresses(machine: Machine) -> frozenset[str | None]:
    """The PCI addresses of GPUs that are lost now, as far as it is known; None stands for one that is not named."""
    cases, _ = _cases(machine)
    return frozenset(
        address for address, case in cases.items() if _past(machine, gpu_at(machine, address), address, case) is None
    )


@machine_check(BUS_LOST)
def lost(machine: Machine) -> Iterator[Finding]:
    """One finding for each GPU, whatever tells of it."""
    if not may_have_nvidia(machine):
        return
    cases, missing = _cases(machine)
    for address, case in cases.items():
        yield _lost(machine, address, case)
    if not cases and missing is not None:
        raise missing


def _lost(machine: Machine, address: str | None, case: _Case) -> Finding:
    gpu = gpu_at(machine, address)
    who = named(gpu, address)
    past = _past(machine, gpu, address, case)
    entry = nvml_entry(machine, gpu)
    severity: Severity = "error"
    cause = f"{sentence(who)} no longer answers on the PCI bus; every process that used it has lost its work there."
    title = None
    fix = [
        Fix(
            "Drain this host and restart it (NVIDIA's action: RESTART_BM); if the GPU does not come back by that,"
            " switch the power off and on",
            REBOOT.command,
        ),
        Fix("If it happens again, have power, cooling, slot, riser and the GPU itself checked"),
    ]
    if past is not None:
        severity, title = "info", "A GPU had fallen off the PCI bus, and is back"
        cause = f"{sentence(who)} fell off the PCI bus earlier in this uptime and was set up anew or used since."
        fix = fix[1:]
        case.evidence.append(past)
    elif not case.now and answers(entry):
        severity, title = "warning", "A GPU fell off the PCI bus, and answers again"
        cause = (
            f"{sentence(who)} fell off the PCI bus earlier in this uptime. It answers now, but nothing shows a reset."
        )
        case.evidence.append(Evidence("NVML", f"answers for {who}"))
    return BUS_LOST.finding(
        cause, evidence=case.evidence, fix=fix, target=gpu_target(gpu, address), severity=severity, title=title
    )


@machine_check(RECOVERY_ACTION)
def recovery(machine: Machine) -> Iterator[Finding]:
    """What the driver wants done, for each GPU that is on the bus."""
    if not may_have_nvidia(machine):
        return
    entries = nvml_entries(machine)
    lost = lost_addresses(machine)
    for entry in entries:
        action = entry.get("recovery_action")
        error = entry.get("error") or ""
        if not action and "reset" not in error.lower():
            continue
        address = _address_of(machine, entry, len(entries))
        if address not in lost:
            yield _recovery(machine, gpu_at(machine, address), entry, action or 1)


def _recovery(machine: Machine, gpu: Gpu | None, entry: Mapping[str, Any], action: int) -> Finding:
    who = named(gpu, None) if gpu is not None else f"GPU {entry['index']}"
    wish = RECOVERY.get(action, f"recovery action {action}, which gpuiso does not know")
    draining = action in (3, 4)
    cause = (
        f"For {who} the driver asks for {wish}." if not wish.startswith("to ") else f"The driver asks {wish}: {who}."
    )
    if action == 1:
        cause += " Until then it takes no new work."
    says = f"error: {entry['error']}" if entry.get("error") else f"recovery action {action}"
    return RECOVERY_ACTION.finding(
        cause,
        evidence=[Evidence("NVML", f"GPU {entry['index']}: {says}")],
        fix=list(_recovery_fixes(machine, gpu, action)),
        target=gpu_target(gpu),
        severity="warning" if draining else "error",
    )


def _recovery_fixes(machine: Machine, gpu: Gpu | None, action: int) -> Iterator[Fix]:
    if action in (2, 7):
        yield REBOOT
    elif action == 3:
        yield Fix("Let the jobs end that use this GPU together with others over NVLink, and start none there")
    elif action == 4:
        yield Fix("Start no new work on this GPU and let what runs there end")
        yield reset_fix(machine, gpu)
    elif action == 5:
        yield Fix("Restart the IMEX service on every node of its domain", "sudo systemctl restart nvidia-imex")
    else:
        yield reset_fix(machine, gpu)
