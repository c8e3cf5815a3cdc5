# SPDX-License-Identifier: Apache-2.0
"""Sandboxes that give a process the GPU nodes and keep something else from it that CUDA needs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpuiso.doctor.checks.access_words import target_of
from gpuiso.doctor.checks.gpu_users import families, uses
from gpuiso.doctor.finding import Evidence, Finding, Fix, Rule, Target
from gpuiso.doctor.machine import Machine, Subject
from gpuiso.doctor.registry import machine_check, process_check
from gpuiso.errors import Unknown
from gpuiso.host.mounts import covering_mount, mounts

__all__: list[str] = []

SYSFS = Rule(
    "GPU-SANDBOX-SYSFS",
    "error",
    "The sandbox has no /sys, which CUDA reads",
    "a sandbox gives a process the GPU nodes but not /sys: cuInit fails with 304",
    (
        "https://github.com/truefoundry/trueforge/issues/466",
        "https://github.com/igo95862/bubblejail/issues/123",
    ),
)
LANDLOCK = Rule(
    "GPU-SANDBOX-LANDLOCK",
    "error",
    "The sandbox lets the process not write below /proc",
    "Landlock or a read-only /proc refuses CUDA to name its threads (/proc/PID/task/TID/comm): cuInit fails with 304",
    (
        "https://github.com/NVIDIA/NemoClaw/issues/4016",
        "https://github.com/NVIDIA/OpenShell/issues/1486",
        "https://docs.kernel.org/admin-guide/LSM/landlock.html",
    ),
)
SECCOMP = Rule(
    "GPU-SANDBOX-SECCOMP",
    "error",
    "A seccomp filter refuses a system call of the process",
    "the kernel's log says that a seccomp filter stopped a system call that CUDA needs",
    ("https://docs.kernel.org/userspace-api/seccomp_filter.html",),
)
GVISOR = Rule(
    "GPU-GVISOR-DRIVER",
    "error",
    "gVisor does not know this version of NVIDIA's driver",
    "gVisor's nvproxy supports certain driver versions only, and the host's is none of them",
    (
        "https://gvisor.dev/docs/user_guide/gpu/",
        "https://github.com/google/gvisor/issues/12773",
        "https://github.com/ray-project/ray/issues/66161",
    ),
)

_NEEDED = ("/sys/bus/pci/devices", "/sys/module/nvidia/initstate")
_LANDLOCK = re.compile(r"blockers=(\S*fs\.write_file\S*).*?path=\"(/(?:proc|\d+)[^\"]*)\"")
_SECCOMP = re.compile(r"type=1326 .*?\bpid=(\d{1,9})\b.*?\bcomm=\"([^\"]*)\".*?\barch=([0-9a-f]+) syscall=(\d{1,9})\b")
#: What CUDA's start-up calls: number by AUDIT_ARCH (x86_64, aarch64).
_CALLS = {
    ("c000003e", 319): "memfd_create",
    ("c00000b7", 279): "memfd_create",
    ("c000003e", 16): "ioctl",
    ("c00000b7", 29): "ioctl",
    ("c000003e", 203): "sched_setaffinity",
    ("c00000b7", 122): "sched_setaffinity",
    ("c000003e", 237): "mbind",
    ("c00000b7", 235): "mbind",
}
_UNSUPPORTED = re.compile(r"unsupported Nvidia driver version: ([\d.]+\d)")


def _works_with_gpus(subject: Subject) -> bool:
    """Whether the process can open all that CUDA needs and has not started CUDA yet."""
    if not subject.machine.nvidia or "/dev/nvidia-uvm" in subject.holds:
        return False
    if subject.denied and not _some_left(subject):
        return False
    family = next(family for family in families(subject.machine) if family.vendor == "nvidia")
    return uses(subject, family, in_view=True)


def _some_left(subject: Subject) -> bool:
    control = {node.path for node in subject.machine.nvidia_nodes if node.required and node.role != "gpu"}
    gpus = {node.path for node in subject.machine.nvidia_nodes if node.role == "gpu"}
    return not control & set(subject.denied) and bool(gpus - set(subject.denied))


@process_check(SYSFS)
def without_sysfs(subject: Subject) -> Iterator[Finding]:
    """The host has what CUDA reads in /sys, and the process's view has not."""
    if not _works_with_gpus(subject):
        return
    absent = [path for path in _NEEDED if subject.stat(path) is None and subject.host.stat(path) is not None]
    if not absent:
        return
    yield SYSFS.finding(
        f"{subject.comm} (pid {subject.pid}) can open the GPU nodes, but its view has no {absent[0]}: CUDA reads that"
        " when it starts, and cuInit fails with 304 (OS call failed).",
        evidence=[
            *(Evidence(f"/proc/{subject.pid}/root{path}", "does not exist") for path in absent),
            Evidence(absent[0], "exists on the host"),
        ],
        fix=[Fix("Show /sys to the sandbox, read-only; for bubblewrap: --ro-bind /sys /sys")],
        target=target_of(subject, None),
    )


@process_check(LANDLOCK)
def read_only_proc(subject: Subject) -> Iterator[Finding]:
    """/proc cannot be written: by a Landlock domain, as the audit log says, or because it is mounted read-only."""
    if not _works_with_gpus(subject):
        return
    mount = covering_mount(mounts(subject.host, subject.pid), f"/proc/{subject.pid}/task")
    who = f"{subject.comm} (pid {subject.pid})"
    if mount is not None and mount.fstype == "proc" and "ro" in mount.options:
        yield LANDLOCK.finding(
            f"{who} can open the GPU nodes, but {mount.point} is mounted read-only in its view. CUDA writes the names"
            " of its threads there when it starts; cuInit is likely to fail with 304.",
            severity="warning",
            title="The sandbox's /proc is read-only",
            evidence=[Evidence(f"/proc/{subject.pid}/mountinfo", f"{mount.point}: ro")],
            fix=[Fix("Give the sandbox a /proc that it may write; for bubblewrap: --proc /proc")],
            target=target_of(subject, None),
        )
        return
    if not subject.asked:
        return
    for line in subject.machine.audit_log:
        match = _LANDLOCK.search(line)
        if match is not None and "/comm" in match[2]:
            yield LANDLOCK.finding(
                f"A Landlock domain refused a write to {match[2]}. CUDA names its threads there when it starts: if"
                f" {who} is in that sandbox, cuInit fails with 304 in it.",
                evidence=[Evidence("kernel log", f"landlock: blockers={match[1]} path={match[2]}")],
                fix=[Fix("Add /proc to the paths that the sandbox's Landlock rules let it write")],
                target=target_of(subject, None),
                severity="warning",
            )
            return


@process_check(SECCOMP)
def refused_calls(subject: Subject) -> Iterator[Finding]:
    """System calls of this very process that a filter refused, as far as the filter logs them."""
    if not subject.machine.nvidia or subject.status.seccomp != 2:
        return
    for line in subject.machine.audit_log:
        match = _SECCOMP.search(line)
        if match is None or int(match[1]) != subject.pid:
            continue
        name = _CALLS.get((match[3], int(match[4])))
        if name is not None:
            yield SECCOMP.finding(
                f"A seccomp filter refused {subject.comm} (pid {subject.pid}) the system call {name}, which CUDA makes"
                " when it starts.",
                evidence=[
                    Evidence("kernel log", f"type=1326 pid={match[1]} comm={match[2]} syscall={match[4]} ({name})"),
                    Evidence(f"/proc/{subject.pid}/status", "Seccomp: 2"),
                ],
                fix=[Fix(f"Allow {name} in the sandbox's seccomp profile (Docker: --security-opt seccomp=FILE)")],
                target=target_of(subject, None),
            )
            return


@machine_check(GVISOR)
def nvproxy(machine: Machine) -> Iterator[Finding]:
    """Containers of runsc that ask for GPUs, against the versions that runsc knows."""
    driver = machine.inventory.driver_version
    if driver is None or not machine.nvidia:
        return
    for identifier, container in sorted(machine.host.docker_containers().items()):
        settings = container.get("HostConfig") or {}
        runtime = str(settings.get("Runtime") or "")
        message = _UNSUPPORTED.search(str((container.get("State") or {}).get("Error") or ""))
        if "runsc" not in runtime and "gvisor" not in runtime and message is None:
            continue
        environment = map(str, (container.get("Config") or {}).get("Env") or ())
        asked = settings.get("DeviceRequests") or any(e.startswith("NVIDIA_VISIBLE_DEVICES=") for e in environment)
        if message is None and (not asked or _supported(machine, driver)):
            continue
        name = str(container.get("Name") or identifier[:12]).lstrip("/")
        running = bool((container.get("State") or {}).get("Running"))
        if message is not None and message[1] != driver:
            continue  # of a driver before
        says = (
            Evidence(f"docker inspect {name}: State.Error", message[0])
            if message is not None
            else Evidence("runsc nvproxy list-supported-drivers", f"does not list {driver}")
        )
        yield GVISOR.finding(
            f"Container {name} runs in gVisor ({runtime or 'runsc'}), whose nvproxy does not support driver {driver}:"
            " no GPU works in it.",
            severity="warning" if running and message is None else "error",
            evidence=[Evidence("/proc/driver/nvidia/version", f"driver {driver}"), says],
            fix=[
                Fix("Update gVisor, or install one of the drivers it lists", "runsc nvproxy list-supported-drivers"),
            ],
            target=Target(container=identifier),
        )


def _supported(machine: Machine, driver: str) -> bool:
    """:raises Unknown: runsc does not tell."""
    result = machine.host.command(("runsc", "nvproxy", "list-supported-drivers"))
    if result is None or result.exit != 0:
        raise Unknown("runsc nvproxy list-supported-drivers", "not to be had")
    return driver in result.stdout.split()
