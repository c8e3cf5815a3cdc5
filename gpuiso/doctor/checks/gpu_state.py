# SPDX-License-Identifier: Apache-2.0
"""What the checks of health share: a GPU by its address, what NVML says of it now, what became of an old message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpuiso.doctor.finding import Evidence, Fix, Target
from gpuiso.doctor.kernel_log import Message
from gpuiso.doctor.machine import Machine
from gpuiso.errors import NotFound, Unknown
from gpuiso.gpu.model import Gpu
from gpuiso.gpu.pci import normal_address
from gpuiso.host import process

__all__ = [
    "KERNEL_LOG",
    "REBOOT",
    "USER_HZ",
    "after_boot",
    "answers",
    "gpu_at",
    "gpu_target",
    "may_have_nvidia",
    "named",
    "nvml_entries",
    "nvml_entry",
    "recovery_action",
    "reset_fix",
    "sentence",
    "settled",
    "span",
    "uptime",
]

_LONGEST = 1e10  # seconds; three hundred years

KERNEL_LOG = "kernel log"
USER_HZ = 100  # ticks a second in /proc/PID/stat, on every architecture with NVIDIA GPUs

REBOOT = Fix("Drain this host and reboot it", "sudo systemctl reboot")


def may_have_nvidia(machine: Machine) -> bool:
    """Whether there is anything of NVIDIA's on this host, a GPU or the driver; a record may be a log alone."""
    inventory = machine.inventory
    if not machine.host.live or inventory.driver_version is not None:
        return True
    return any(gpu.vendor == "nvidia" for gpu in inventory.gpus)


def gpu_at(machine: Machine, address: str | None) -> Gpu | None:
    """The NVIDIA GPU at a PCI address."""
    return next((gpu for gpu in machine.inventory.gpus if gpu.vendor == "nvidia" and gpu.pci_address == address), None)


def named(gpu: Gpu | None, address: str | None) -> str:
    """``GPU 1 (0000:07:00.0)``, as far as it is known which one it is."""
    if gpu is not None and gpu.index is not None:
        return f"GPU {gpu.index} ({gpu.pci_address})"
    return "a GPU" if address is None else f"the GPU at {address}"


def sentence(text: str) -> str:
    """The text with a capital at its start."""
    return text[:1].upper() + text[1:]


def gpu_target(gpu: Gpu | None, address: str | None = None) -> Target:
    """The GPU by its UUID, or by its PCI address where it has none that is known."""
    if gpu is None:
        return Target(gpu=address)
    return Target(gpu=gpu.uuid or gpu.pci_address)


def nvml_entries(machine: Machine) -> Sequence[Mapping[str, Any]]:
    """NVML's GPUs. :raises Unknown: NVML does not answer, or was not recorded."""
    entries: Sequence[Mapping[str, Any]] = (machine.host.nvml() or {}).get("gpus", ())
    return entries


def nvml_entry(machine: Machine, gpu: Gpu | None) -> Mapping[str, Any]:
    """What NVML says of one GPU; nothing where it says nothing, or is not known: it only adds to other evidence."""
    if gpu is None:
        return {}
    try:
        entries = nvml_entries(machine)
    except Unknown:
        return {}
    found = (entry for entry in entries if normal_address(entry.get("pci_bus_id") or "") == gpu.pci_address)
    return next(found, {})


def answers(entry: Mapping[str, Any]) -> bool:
    """Whether NVML has reached the GPU itself."""
    return entry.get("uuid") is not None and entry.get("memory_total_mib") is not None and "error" not in entry


def recovery_action(machine: Machine, gpu: Gpu | None) -> int | None:
    """What the driver wants done to a GPU now, None where it does not tell."""
    action: int | None = nvml_entry(machine, gpu).get("recovery_action")
    return action


def uptime(machine: Machine) -> float:
    """Seconds since boot."""
    text = machine.host.text("/proc/uptime")
    try:
        seconds = float((text or "").split()[0])
    except (ValueError, IndexError):
        seconds = -1.0
    if not 0 <= seconds < _LONGEST:
        raise Unknown("/proc/uptime", "not in the form of proc_uptime(5)")
    return seconds


def after_boot(seconds: float) -> str:
    """A time of the kernel's log in words: ``3 d 4 h``."""
    days, rest = divmod(int(seconds), 86400)
    hours, rest = divmod(rest, 3600)
    if days:
        return f"{days} d {hours} h"
    minutes, rest = divmod(rest, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def span(machine: Machine, first: Message, last: Message, count: int) -> str:
    """``3 times, first 2 h 0 min and last 5 h 0 min after boot (1 d 2 h ago)``."""
    times = "once" if count == 1 else f"{count} times"
    if first.seconds is None or last.seconds is None:
        return times
    when = f"{after_boot(last.seconds)} after boot"
    if after_boot(first.seconds) != after_boot(last.seconds):
        when = f"first {after_boot(first.seconds)} and last {when}"
    try:
        ago = uptime(machine) - last.seconds
    except Unknown:
        return f"{times}, {when}"
    return f"{times}, {when} ({after_boot(ago)} ago)" if ago >= 0 else f"{times}, {when}"


def settled(machine: Machine, gpu: Gpu | None, address: str | None, last: Message) -> Evidence | None:
    """What shows that a message of the log is of the past: the GPU was set up anew, or does work again.

    A line of the log alone never tells: the ring spans the whole uptime.
    """
    log = machine.driver_log
    if log.loaded is not None and log.loaded.place > last.place:
        return Evidence(KERNEL_LOG, f"the driver was loaded again since: {log.loaded.quoted}")
    found = log.found.get(address or "")
    if found is not None and found.place > last.place:
        return Evidence(KERNEL_LOG, f"the GPU was found anew on the bus since: {found.quoted}")
    for event in log.xids:
        if event.address == address and event.message.place > last.place and _cleared(event.number, event.rest):
            return Evidence(KERNEL_LOG, event.message.quoted)
    if recovery_action(machine, gpu) == 0 and _long_ago(machine, last):
        return Evidence("NVML", "recovery action: none, so the driver wants nothing done to this GPU")
    return _used_since(machine, gpu, last)


def _cleared(number: int, rest: str) -> bool:
    return number == 154 and " to 0x0 " in f"{rest} "


def _long_ago(machine: Machine, last: Message) -> bool:
    if last.seconds is None:
        return True
    try:
        return uptime(machine) - last.seconds > 3600
    except Unknown:
        return True


def _used_since(machine: Machine, gpu: Gpu | None, last: Message) -> Evidence | None:
    """A process that NVML lists on the GPU and that started later: a broken GPU takes no new contexts."""
    if last.seconds is None:
        return None
    for entry in nvml_entry(machine, gpu).get("processes", ()):
        try:
            started = process.start_time(machine.host, entry["pid"]) / USER_HZ
        except (NotFound, Unknown):
            continue
        if entry.get("used_memory_mib") and started > last.seconds + 1:
            return Evidence(
                "NVML", f"process {entry['pid']} uses this GPU and started {after_boot(started)} after boot"
            )
    return None


def reset_fix(machine: Machine, gpu: Gpu | None) -> Fix:
    """Reset one GPU, which takes that nothing holds it, monitoring and nvidia-persistenced included."""
    text = "Stop what uses the GPU, nvidia-persistenced and monitoring included, and reset it"
    pids: list[str] = []
    if gpu is not None and gpu.node is not None:
        try:
            holders = [holder for holder in machine.holders if holder.node == gpu.node.path]
        except Unknown:
            holders = []
        pids = [f"{holder.comm} ({holder.pid})" for holder in holders[:8]]
    if pids:
        text += f"; now held by {', '.join(pids)}"
    text += "; where the reset is refused or does not help, reboot"
    if gpu is None or gpu.uuid is None:
        return Fix(text)
    return Fix(text, f"sudo nvidia-smi --gpu-reset -i {gpu.uuid}")
