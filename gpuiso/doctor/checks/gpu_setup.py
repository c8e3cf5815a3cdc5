# SPDX-License-Identifier: Apache-2.0
"""GPUs on the bus that the driver could not take or could not start, as the kernel's log tells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuiso.doctor.checks.gpu_state import (
    KERNEL_LOG,
    REBOOT,
    answers,
    gpu_at,
    gpu_target,
    may_have_nvidia,
    named,
    nvml_entry,
    sentence,
    settled,
    span,
)
from gpuiso.doctor.checks.lost_gpus import lost_addresses
from gpuiso.doctor.checks.xid_lines import unsettled_reset_of
from gpuiso.doctor.finding import Evidence, Finding, Fix, Rule, Severity
from gpuiso.doctor.kernel_log import Message
from gpuiso.doctor.machine import Machine
from gpuiso.doctor.registry import machine_check

__all__: list[str] = []

RM_INIT = Rule(
    "GPU-RM-INIT",
    "error",
    "The driver cannot initialise a GPU",
    "the kernel log says RmInitAdapter failed: the GPU is on the bus, but the driver could not start it",
    ("https://docs.nvidia.com/deploy/xid-errors/index.html",),
)
PCI_REGION = Rule(
    "GPU-PCI-REGION",
    "error",
    "A GPU was given no address space on the PCI bus",
    "the kernel log says that a PCI I/O region (BAR) of a GPU is invalid: firmware or hypervisor assigned none",
    (
        "https://github.com/NVIDIA/gpu-operator/issues/492",
        "https://github.com/NVIDIA/open-gpu-kernel-modules/issues/344",
    ),
)


def _by_address(messages: Sequence[tuple[str | None, Message]]) -> dict[str | None, list[Message]]:
    found: dict[str | None, list[Message]] = {}
    for address, message in messages:
        found.setdefault(address, []).append(message)
    return found


@machine_check(RM_INIT)
def not_initialised(machine: Machine) -> Iterator[Finding]:
    """RmInitAdapter failed, unless the GPU is off the bus or stuck, which is then the cause and told as such."""
    if not may_have_nvidia(machine):
        return
    groups = _by_address(machine.driver_log.rm_init)
    lost = lost_addresses(machine) if groups else frozenset()
    for address, messages in groups.items():
        if address not in lost and not unsettled_reset_of(machine, address):
            yield _not_initialised(machine, address, messages)


def _not_initialised(machine: Machine, address: str | None, messages: Sequence[Message]) -> Finding:
    gpu = gpu_at(machine, address)
    who = named(gpu, address)
    last = next((message for message in reversed(messages) if "RmInitAdapter" in message.text), messages[-1])
    attempts = [message for message in messages if "RmInitAdapter" in message.text] or messages
    evidence = [Evidence(KERNEL_LOG, last.quoted)]
    severity: Severity = "error"
    cause = (
        f"The driver failed to initialise {who} {span(machine, attempts[0], attempts[-1], len(attempts))}:"
        " programs do not see it."
    )
    past = settled(machine, gpu, address, messages[-1])
    if past is None and answers(nvml_entry(machine, gpu)):
        past = Evidence("NVML", f"answers for {who} now")
    if past is not None:
        severity = "info"
        cause += " It was initialised since."
        evidence.append(past)
    return RM_INIT.finding(
        cause,
        evidence=evidence,
        fix=[]
        if past is not None
        else [
            Fix(
                "Read the lines before it, which say at what step it failed",
                "sudo dmesg | grep -B 20 -A 2 RmInitAdapter",
            ),
            Fix(
                "Check that the driver fits the GPU (version, open or proprietary modules, firmware files under"
                " /lib/firmware/nvidia), its power cables and its PCIe link"
            ),
            REBOOT,
        ],
        target=gpu_target(gpu, address),
        severity=severity,
        title="The driver failed to initialise a GPU at first" if past is not None else None,
    )


@machine_check(PCI_REGION)
def no_region(machine: Machine) -> Iterator[Finding]:
    """A GPU without a BAR never gets a driver; one that has its driver now had its BARs assigned later."""
    if not may_have_nvidia(machine):
        return
    log = machine.driver_log
    for address, messages in _by_address(log.bad_regions).items():
        gpu = gpu_at(machine, address)
        found = log.found.get(address or "")
        if (gpu is not None and gpu.driver is not None) or (found is not None and found.place > messages[-1].place):
            continue
        regions = sorted({message.text.removeprefix("NVRM: ").split(" (PCI", 1)[0] for message in messages})
        yield PCI_REGION.finding(
            f"{sentence(named(gpu, address))} has no usable address space ({', '.join(regions)}), so the driver cannot"
            " take it. The firmware, or the hypervisor of a virtual machine, left too little room for its memory.",
            evidence=[Evidence(KERNEL_LOG, messages[-1].quoted)],
            fix=[
                Fix("In the firmware's settings turn on Above 4G Decoding (and Resizable BAR where it is offered)"),
                Fix("Or let the kernel assign the regions anew: boot it with pci=realloc (not verified on this host)"),
                Fix("In a virtual machine: give it a larger 64-bit MMIO window"),
            ],
            target=gpu_target(gpu, address),
        )
