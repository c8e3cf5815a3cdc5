# SPDX-License-Identifier: Apache-2.0
"""The hang of NVLink hosts after 66 days of uptime.

Its cause is not known in public; what is known are the uptime, the driver branches of the reports, and two messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpuiso.doctor.checks.gpu_state import KERNEL_LOG, REBOOT, after_boot, may_have_nvidia, nvml_entries, span, uptime
from gpuiso.doctor.finding import Evidence, Finding, Fix, Rule
from gpuiso.doctor.machine import Machine
from gpuiso.doctor.registry import machine_check
from gpuiso.errors import Unknown
from gpuiso.gpu.model import Gpu

__all__ = ["UPTIME_HANG"]

UPTIME_HANG = Rule(
    "GPU-UPTIME-HANG",
    "warning",
    "The driver may hang after about 66 days of uptime",
    "NVLink data-centre GPUs with a driver of branch 570 to 580 on a host that has been up for 60 days or more",
    ("https://github.com/NVIDIA/open-gpu-kernel-modules/issues/971",),
)

_DAY = 86400
_RISK = 60 * _DAY
_REPORTED = "66 days 12 hours"
_ESCAPED = 90 * _DAY
_BRANCHES = range(570, 581)
_NVLINK_GPU = re.compile(r"\b(?:A100|A800|H20|H100|H200|H800|GH200|B100|B200|B300|GB200|GB300)\b")


@machine_check(UPTIME_HANG)
def uptime_hang(machine: Machine) -> Iterator[Finding]:
    """The two messages are an error at any time; the mere risk is a warning from day 60."""
    if not may_have_nvidia(machine):
        return
    try:
        lines = machine.driver_log.link_mask
        missing = None
    except Unknown as error:
        lines, missing = [], error
    if lines:
        yield UPTIME_HANG.finding(
            "The driver fails to read the state of the NVLinks from its firmware"
            f" ({span(machine, lines[0], lines[-1], len(lines))}). On other hosts these messages came with nvidia-smi"
            f" hanging for good after about {_REPORTED} of uptime.",
            evidence=[Evidence(KERNEL_LOG, lines[-1].quoted)],
            fix=[Fix("Drain this host and reboot it while that is still possible in order", REBOOT.command)],
            severity="error",
            title="The driver has lost contact with the NVLinks",
        )
        return
    gpu = _at_risk(machine)
    if gpu is not None:
        up = uptime(machine)
        if up >= _RISK:
            yield _risk(machine, gpu, up)
    if missing is not None:
        raise missing


def _at_risk(machine: Machine) -> Gpu | None:
    version = machine.inventory.driver_version
    if version is None or int(version.partition(".")[0]) not in _BRANCHES:
        return None
    return next((gpu for gpu in machine.nvidia if _NVLINK_GPU.search(gpu.name or "")), None)


def _risk(machine: Machine, gpu: Gpu, up: float) -> Finding:
    version = machine.inventory.driver_version
    cause = (
        f"This host has been up for {after_boot(up)} with driver {version} and {gpu.name} GPUs. On hosts with drivers"
        f" of the branches 570 to 580 nvidia-smi was reported to hang for good after about {_REPORTED}; which version"
        " mends it is not known."
    )
    escaped = up > _ESCAPED and _nvml_answers(machine)
    if escaped:
        cause += " NVML still answers here, long past that time."
    return UPTIME_HANG.finding(
        cause,
        evidence=[
            Evidence("/proc/uptime", f"{up:.0f} seconds"),
            Evidence("/proc/driver/nvidia/version", f"driver {version}"),
        ],
        fix=[Fix("Plan a reboot before day 66 (a workaround; no fix is known)", REBOOT.command)],
        severity="info" if escaped else "warning",
    )


def _nvml_answers(machine: Machine) -> bool:
    try:
        return bool(nvml_entries(machine))
    except Unknown:
        return False
