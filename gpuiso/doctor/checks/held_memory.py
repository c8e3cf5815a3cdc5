# SPDX-License-Identifier: Apache-2.0
"""Memory of a GPU that no living process of NVML's list accounts for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuiso.doctor.checks.gpu_state import gpu_target, named, nvml_entries, nvml_entry, sentence
from gpuiso.doctor.finding import Evidence, Finding, Fix, Rule
from gpuiso.doctor.machine import Machine
from gpuiso.doctor.registry import machine_check
from gpuiso.errors import NotFound, Unknown
from gpuiso.gpu.model import Gpu, Holder
from gpuiso.host import process
from gpuiso.host.protocol import Host

__all__: list[str] = []

VRAM_ORPHAN = Rule(
    "GPU-VRAM-ORPHAN",
    "warning",
    "GPU memory is held by processes that NVML does not list",
    "memory of a GPU is in use, and NVML lists a dead process for it, or none, while /proc shows who holds the GPU",
    ("https://github.com/apache/mxnet/issues/4242", "https://github.com/XuehaiPan/nvitop/issues/152"),
)

_MIB = 1 << 20
#: What the driver itself may use of a GPU without a process: its firmware's heap, page tables, a console.
_DRIVERS_OWN = 1024 * _MIB
_SHARE = 50  # and no less than one part in so many of the GPU's memory
#: Programs that keep GPUs open without memory on them (comm is cut at 15 bytes).
_WATCHERS = frozenset(
    {"nvidia-persiste", "nvidia-smi", "nvidia-powerd", "nv-hostengine", "nv-fabricmanage", "dcgm-exporter", "gpuiso"}
)
_SHOWN = 8


@dataclass(frozen=True, slots=True)
class _Dead:
    """A process that NVML lists with memory, though it is a zombie or gone."""

    pid: int
    used_mib: int
    zombie: bool
    evidence: Evidence


@machine_check(VRAM_ORPHAN)
def orphans(machine: Machine) -> Iterator[Finding]:
    """One finding for each GPU."""
    if not machine.nvidia:
        return
    nvml_entries(machine)  # unknown: not examined, rather than nothing to tell
    for gpu in machine.nvidia:
        used = gpu.memory_used
        if used is None or gpu.memory_total is None or used < _DRIVERS_OWN // 4 or _is_system_memory(machine, gpu):
            continue
        listed = nvml_entry(machine, gpu).get("processes", ())
        dead = list(_dead(machine.host, listed))
        if dead:
            holders = _unlisted(machine, gpu, listed)
            # A process that is gone may have ended after NVML was asked.
            if holders or any(one.zombie for one in dead):
                yield _dead_finding(machine, gpu, dead, holders)
        elif _unexplained(gpu, listed) and _first_namespace(machine.host):
            holders = _unlisted(machine, gpu, listed)
            if holders:  # otherwise it may be a process that we may not look at
                yield _unlisted_finding(machine, gpu, listed, holders)


def _is_system_memory(machine: Machine, gpu: Gpu) -> bool:
    """Whether the kernel itself uses the GPU's memory as a NUMA node, as on Grace Hopper."""
    if re.search(r"\bG[BH]\d{3}\b", gpu.name or ""):
        return True
    return "nvidia_vgpu_vfio" in machine.modules


def _dead(host: Host, listed: Sequence[Mapping[str, Any]]) -> Iterator[_Dead]:
    for entry in listed:
        pid, used = entry["pid"], entry.get("used_memory_mib")
        if not used:
            continue
        try:
            status = process.status(host, pid)
        except NotFound:
            if _first_namespace(host):
                yield _Dead(pid, used, False, Evidence(f"/proc/{pid}", "does not exist"))
            continue
        except Unknown:
            continue
        if status.state == "Z" and not _has_live_threads(host, pid):
            yield _Dead(pid, used, True, Evidence(f"/proc/{pid}/status", f"{status.name} is a zombie"))


def _has_live_threads(host: Host, pid: int) -> bool:
    """A main thread that ended alone looks like a zombie, too."""
    try:
        return len(host.listdir(f"/proc/{pid}/task") or ()) > 1
    except Unknown:
        return False


def _first_namespace(host: Host) -> bool:
    """Whether the pids are the host's own, of which NVML speaks: there pid 2 is the kernel's kthreadd."""
    return (host.text("/proc/2/comm") or "").strip() == "kthreadd"


def _unlisted(machine: Machine, gpu: Gpu, listed: Sequence[Mapping[str, Any]]) -> list[Holder]:
    """Who has the GPU's node open and is not on NVML's list."""
    node = gpu.node
    pids = {entry["pid"] for entry in listed}
    return [
        holder
        for holder in machine.holders
        if node is not None and holder.node == node.path and holder.pid not in pids and holder.comm not in _WATCHERS
    ]


def _unexplained(gpu: Gpu, listed: Sequence[Mapping[str, Any]]) -> int:
    """Bytes in use beyond what NVML's processes and the driver itself need; 0 if it cannot be told."""
    if gpu.mig_enabled or any(entry.get("used_memory_mib") is None for entry in listed):
        return 0
    used, total = gpu.memory_used or 0, gpu.memory_total or 0
    rest = used - sum(entry["used_memory_mib"] for entry in listed) * _MIB
    return rest if rest > max(_DRIVERS_OWN, total // _SHARE) else 0


def _people(holders: Sequence[Holder]) -> str:
    first = ", ".join(f"{holder.comm} (pid {holder.pid})" for holder in holders[:_SHOWN])
    return first + (f" and {len(holders) - _SHOWN} more" if len(holders) > _SHOWN else "")


def _holding(holders: Sequence[Holder]) -> list[Evidence]:
    return [
        Evidence(f"/proc/{holder.pid}/fd", f"{holder.descriptors} on {holder.node} ({holder.comm})")
        for holder in holders[:_SHOWN]
    ]


def _free(holders: Sequence[Holder]) -> list[Fix]:
    if not holders:
        return []
    pids = " ".join(str(holder.pid) for holder in holders[:_SHOWN])
    return [
        Fix("If nobody needs them any more, end the processes that hold it; the driver then frees it", f"kill {pids}")
    ]


def _dead_finding(machine: Machine, gpu: Gpu, dead: Sequence[_Dead], holders: Sequence[Holder]) -> Finding:
    who = ", ".join(f"{one.pid} ({one.used_mib} MiB)" for one in dead[:_SHOWN])
    cause = f"{sentence(named(gpu, None))} holds memory of processes that are dead: {who}."
    if holders:
        cause += f" Still alive with the GPU open: {_people(holders)}, most likely their children."
    entry = nvml_entry(machine, gpu)
    return VRAM_ORPHAN.finding(
        cause,
        evidence=[
            *(Evidence("NVML", f"GPU {entry['index']}: process {one.pid} uses {one.used_mib} MiB") for one in dead),
            *(one.evidence for one in dead),
            *_holding(holders),
        ],
        fix=_free(holders) or [Fix("Look for who still has the node open", f"sudo fuser -v {_path(gpu)}")],
        target=gpu_target(gpu),
    )


def _path(gpu: Gpu) -> str:
    return gpu.node.path if gpu.node is not None else "/dev/nvidia*"


def _unlisted_finding(
    machine: Machine, gpu: Gpu, listed: Sequence[Mapping[str, Any]], holders: Sequence[Holder]
) -> Finding:
    rest = _unexplained(gpu, listed) // _MIB
    entry = nvml_entry(machine, gpu)
    sums = sum(process["used_memory_mib"] for process in listed)
    processes = "1 process" if len(listed) == 1 else f"{len(listed)} processes"
    return VRAM_ORPHAN.finding(
        f"{sentence(named(gpu, None))} has {rest} MiB in use that no process on NVML's list accounts for. It is open in"
        f" {_people(holders)}, which NVML does not list.",
        evidence=[
            Evidence(
                "NVML",
                f"GPU {entry['index']}: {entry['memory_used_mib']} MiB used, {processes} with {sums} MiB",
            ),
            *_holding(holders),
        ],
        fix=_free(holders),
        target=gpu_target(gpu),
    )
