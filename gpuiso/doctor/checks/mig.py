# SPDX-License-Identifier: Apache-2.0
"""MIG: instances that are not there, names that went stale, and more devices listed than a process gets."""

from __future__ import annotations

from collections.abc import Iterator

from gpuiso.doctor.checks.cuda_devices import first_with, severity_of
from gpuiso.doctor.checks.cuda_words import gpu_name, inherited, restart
from gpuiso.doctor.finding import Evidence, Finding, Fix, Rule, Severity, Target
from gpuiso.doctor.gates import Explanation
from gpuiso.doctor.machine import Machine, Subject
from gpuiso.doctor.registry import machine_check, process_check
from gpuiso.errors import Unknown
from gpuiso.gpu.mig import CAPABILITIES
from gpuiso.gpu.model import Gpu, MigDevice
from gpuiso.gpu.visibility.cuda import VARIABLE
from gpuiso.gpu.visibility.mig import mig_name
from gpuiso.gpu.visibility.model import Kind, Reason
from gpuiso.gpu.visibility.tokens import quoted

__all__: list[str] = []

_GUIDE = "https://docs.nvidia.com/datacenter/tesla/mig-user-guide/"

SINGLE = Rule(
    "GPU-MIG-SINGLE",
    "warning",
    "CUDA gives the process fewer MIG devices than it lists",
    "More MIG devices are listed than a process gets: one before R570, one of each GPU instance since",
    (_GUIDE, "https://github.com/pytorch/pytorch/issues/130181"),
)
NO_INSTANCE = Rule(
    "GPU-MIG-NOINSTANCE",
    "warning",
    "A GPU is in MIG mode without a MIG device",
    "MIG mode outlives a reboot, its instances do not: CUDA sees nothing of such a GPU",
    (_GUIDE, "https://github.com/NVIDIA/k8s-device-plugin/issues/225"),
)
STALE = Rule(
    "GPU-MIG-STALE-UUID",
    "error",
    "A MIG device is selected that does not exist",
    "CUDA_VISIBLE_DEVICES names a MIG device that is not on this host (any more): the list ends there",
    (_GUIDE, "https://github.com/NVIDIA/nvidia-container-toolkit/issues/1828"),
)
CAPS = Rule(
    "GPU-MIG-CAPS",
    "error",
    "The capability nodes of a MIG device cannot be opened",
    "A MIG device needs its two nodes below /dev/nvidia-caps; one is missing or denied",
    (_GUIDE, "https://github.com/NVIDIA/k8s-device-plugin/issues/1683"),
)

_CAP_SYS_ADMIN = 21  # include/uapi/linux/capability.h


def _devices(machine: Machine) -> list[tuple[Gpu, MigDevice]]:
    return [(gpu, mig) for gpu in machine.nvidia if gpu.mig_enabled for mig in gpu.mig_devices]


def _described(gpu: Gpu, mig: MigDevice) -> str:
    profile = "" if mig.profile is None else f", {mig.profile}"
    return f"{mig_name(mig)} (GPU {gpu.index}{profile})"


@machine_check(NO_INSTANCE)
def no_instance(machine: Machine) -> Iterator[Finding]:
    """MIG mode is on, and there is no compute instance."""
    for gpu in machine.nvidia:
        if not gpu.mig_enabled or gpu.mig_devices:
            continue
        base = f"{CAPABILITIES}/gpu{gpu.minor}/mig"
        halves = [name for name in machine.host.listdir(base) or () if name.startswith("gi")]
        listed = ", ".join(halves) or "no GPU instance"
        if halves:
            fix = Fix(
                "Make the compute instances that the GPU instances lack. Not tried on this host",
                f"sudo nvidia-smi mig -i {gpu.index} -gi {','.join(n[2:] for n in halves)} -cci",
            )
        else:
            fix = Fix(
                "Make GPU and compute instances of a profile that nvidia-smi mig -lgip lists (19 is the smallest on"
                " most models). Not tried on this host",
                f"sudo nvidia-smi mig -i {gpu.index} -cgi 19 -C",
            )
        yield NO_INSTANCE.finding(
            f"{gpu_name(gpu)} is in MIG mode, but has no compute instance ({listed}): CUDA finds no device on it."
            " MIG mode outlives a reboot, instances do not.",
            evidence=[Evidence("NVML", f"MIG mode of GPU {gpu.index}: Enabled"), Evidence(base, listed)],
            fix=[
                fix,
                Fix("Or turn MIG mode off, while nothing uses the GPU", f"sudo nvidia-smi -i {gpu.index} -mig 0"),
            ],
            target=_of(gpu),
        )


def _of(gpu: Gpu) -> Target:
    return Target(gpu=gpu.uuid or gpu.pci_address)


@process_check(STALE)
def stale(subject: Subject) -> Iterator[Finding]:
    """A MIG name that no device of this host has; where MIG mode lacks its instances, that is GPU-MIG-NOINSTANCE."""
    token = first_with(subject, Reason.UNKNOWN_MIG, Reason.NO_MIG)
    if token is None or token.kind is not Kind.MIG:
        return
    devices = _devices(subject.machine)
    if any(mig.uuid is None for _, mig in devices) and "/" not in token.text:
        raise Unknown("UUIDs of MIG devices", "NVML does not tell them")
    if (not devices and any(gpu.mig_enabled for gpu in subject.machine.nvidia)) or inherited(subject):
        return
    here = ", ".join(_described(gpu, mig) for gpu, mig in devices) or "no MIG device"
    what = f"This host has {here}" if devices else "No GPU of this host is in MIG mode"
    fixes = [Fix("See what there is, and name one of these", "nvidia-smi -L")]
    if devices and devices[0][1].uuid is not None:
        command = f"export {VARIABLE}={devices[0][1].uuid}"
        fixes = [Fix(f"Name a MIG device that exists ({here}), {restart(subject)}", command)]
    yield STALE.finding(
        f"{quoted(token.text)} in {VARIABLE} names no MIG device that {subject.comm} (pid {subject.pid}) can use:"
        f" {token.why}. {what}.",
        evidence=[subject.environ_evidence(VARIABLE), Evidence(f"{CAPABILITIES} and NVML", here)],
        fix=fixes,
        target=subject.target,
        severity=severity_of(subject),
    )


@process_check(SINGLE)
def single(subject: Subject) -> Iterator[Finding]:
    """More devices listed than CUDA enumerates for one process."""
    token = first_with(subject, Reason.SINGLE_MIG, Reason.SAME_GPU_INSTANCE, Reason.TOO_MANY)
    if token is None or inherited(subject):
        return
    version = subject.machine.inventory.driver_version
    shown = ", ".join(gpu.mig or f"GPU {gpu.physical}" for gpu in subject.visibility.gpus)
    yield SINGLE.finding(
        f"{VARIABLE}={subject.env[VARIABLE]} lists {len(subject.visibility.tokens)} devices, and CUDA shows"
        f" {subject.comm} (pid {subject.pid}) only {shown}: {token.why}.",
        evidence=[
            subject.environ_evidence(VARIABLE),
            *([Evidence("/proc/driver/nvidia/version", f"driver {version}")] if version is not None else []),
        ],
        fix=[
            Fix("Start one process for each MIG device, each with one name in the variable"),
            Fix("Or give one process a larger instance; drivers from R570 on also show one of each GPU instance"),
        ],
        target=subject.target,
    )


def _closed_nodes(subject: Subject, mig: MigDevice) -> list[Explanation]:
    """The capability nodes of a MIG device that the process cannot open for reading."""
    answers = [subject.access(node.path, "r") for node in mig.nodes]
    for answer in answers:
        if answer.verdict == "unknown":
            raise Unknown(f"access of pid {subject.pid} to {answer.node}", answer.unknown_because or "")
    return [answer for answer in answers if answer.verdict == "deny"]


def _files(gpu: Gpu, mig: MigDevice) -> tuple[str, str]:
    """The capability files whose nodes nvidia-modprobe(1) makes."""
    instance = f"{CAPABILITIES}/gpu{gpu.minor}/mig/gi{mig.gpu_instance}"
    return f"{instance}/access", f"{instance}/ci{mig.compute_instance}/access"


@process_check(CAPS)
def capability_nodes(subject: Subject) -> Iterator[Finding]:
    """The named MIG device's nodes; with none named, a finding only where no MIG device at all can be opened."""
    devices = [device for device in _devices(subject.machine) if device[1].nodes]
    if not devices or subject.status.cap_eff >> _CAP_SYS_ADMIN & 1:
        return  # CAP_SYS_ADMIN stands for every capability node (MIG User Guide)
    selected = {gpu.mig for gpu in subject.visibility.gpus}
    named = any(token.kind is Kind.MIG for token in subject.visibility.tokens)
    wanted = [device for device in devices if mig_name(device[1]) in selected]
    closed = [(gpu, mig, nodes) for gpu, mig in wanted if (nodes := _closed_nodes(subject, mig))]
    if not closed or inherited(subject):
        return
    if not named and not (subject.asked and len(closed) == len(wanted) == len(subject.visibility.gpus)):
        return  # a container that was given some of the MIG devices has the nodes of these alone
    gpu, mig, nodes = closed[0]
    missing = [answer.node for answer in nodes if answer.denied_by is not None and answer.denied_by.errno == "ENOENT"]
    severity: Severity = "error"
    fix = Fix("Give the process these nodes: name the MIG device to the container engine, which adds them")
    if missing and any(node.path in missing and node.actual is None for node in mig.nodes):
        severity = "info"  # where nvidia-modprobe is setuid, CUDA has them made when it needs them
        fix = Fix("Make the nodes, on the host", " && ".join(f"sudo nvidia-modprobe -f {f}" for f in _files(gpu, mig)))
    yield CAPS.finding(
        f"{subject.comm} (pid {subject.pid}) selects the MIG device {_described(gpu, mig)}, but cannot open"
        f" {' and '.join(answer.node for answer in nodes)}, without which CUDA does not show it.",
        evidence=[
            subject.environ_evidence(VARIABLE),
            *(Evidence(a.node, a.denied_by.says) for a in nodes if a.denied_by is not None),
        ],
        fix=[fix],
        target=subject.target,
        severity=severity,
    )
