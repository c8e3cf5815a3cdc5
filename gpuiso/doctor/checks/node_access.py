# SPDX-License-Identifier: Apache-2.0
"""What keeps a process from nodes that are right on the host: its own /dev, mounts, modes and device filters.

That a process may open some GPUs and not others is what isolation is for: it is no fault. A fault is a process that
works with GPUs and may open none of them, or lacks a node that all of them need.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from gpuiso.doctor.checks.access_words import consequence, evidence_of, fixes, target_of, was_tried
from gpuiso.doctor.checks.cdi_specs import stale_numbers
from gpuiso.doctor.checks.cuda_words import inherited
from gpuiso.doctor.checks.denial import Denial
from gpuiso.doctor.checks.denial_causes import RULES, cause_of
from gpuiso.doctor.checks.gpu_users import Family, families, uses
from gpuiso.doctor.checks.node_files import (
    DEV_MISSING_NS,
    DEV_MODE,
    DEV_NUMBERS,
    LAZY_NODES,
    NVIDIA_MODPROBE,
    UVM_MAJOR_MISMATCH,
    UVM_MISSING,
    setuid_modprobe,
    told_closed,
)
from gpuiso.doctor.finding import Evidence, Finding, Fix, Rule, Severity
from gpuiso.doctor.gates import Gate
from gpuiso.doctor.machine import Subject
from gpuiso.doctor.registry import process_check
from gpuiso.errors import Unknown
from gpuiso.gpu.model import DeviceNode
from gpuiso.gpu.visibility.nodes import NVIDIA_UVM

__all__: list[str] = []

DEV_NODEV = Rule(
    "GPU-DEV-NODEV",
    "error",
    "A GPU node lies on a mount that allows no devices",
    "the mount that holds a GPU node in the process's view has the option nodev: open fails, though access(2) succeeds",
    ("https://man7.org/linux/man-pages/man8/mount.8.html",),
)
CGV2_DENY = Rule(
    "GPU-CGV2-EBPF-DENY",
    "error",
    "A device filter of the cgroup denies GPU nodes",
    "an eBPF device program on the process's cgroup, or on one above it, denies a GPU node",
    (
        "https://github.com/NVIDIA/nvidia-container-toolkit/issues/48",
        "https://github.com/NVIDIA/nvidia-container-toolkit/issues/381",
        "https://docs.kernel.org/admin-guide/cgroup-v2.html#device-controller",
    ),
)
CGV1_DENY = Rule(
    "GPU-CGV1-DEVICES-DENY",
    "error",
    "The devices controller of the cgroup denies GPU nodes",
    "devices.list of the process's cgroup (v1) has no line that allows a GPU node",
    (
        "https://github.com/NVIDIA/nvidia-container-toolkit/issues/251",
        "https://docs.kernel.org/admin-guide/cgroup-v1/devices.html",
    ),
)
AMD_KFD_PERM = Rule(
    "GPU-AMD-KFD-PERM",
    "error",
    "The process is not in the group that may use AMD GPUs",
    "/dev/kfd or a render node belongs to a group (render, video) that the process is not in",
    (
        "https://github.com/ROCm/ROCm-docker/issues/116",
        "https://rocm.docs.amd.com/projects/install-on-linux/en/latest/install/prerequisites.html",
    ),
)

_RULES: Mapping[str, Rule] = {
    "path": DEV_MISSING_NS,
    "nodev": DEV_NODEV,
    "mode": DEV_MODE,
    "cgroup-v2": CGV2_DENY,
    "cgroup-v1": CGV1_DENY,
}


@dataclass(slots=True)
class _Denials:
    """Nodes of one vendor by the gate that keeps the process from them."""

    gpus: dict[str, Gate] = field(default_factory=dict)
    control: dict[str, Gate] = field(default_factory=dict)
    open_gpus: list[str] = field(default_factory=list)
    unknown: Unknown | None = None


@process_check(DEV_MISSING_NS, UVM_MISSING, DEV_NODEV, DEV_MODE, CGV2_DENY, CGV1_DENY, AMD_KFD_PERM, *RULES)
def closed_to_the_process(subject: Subject) -> Iterator[Finding]:
    """One finding for each gate that keeps a process from what it needs."""
    unknown: Unknown | None = None
    for family in families(subject.machine):
        if family.hidden(subject) and not subject.asked:
            continue
        denials = _examine(subject, family)
        unknown = unknown or denials.unknown
        if (denials.gpus or denials.control) and uses(subject, family, in_view=_in_view(denials)):
            yield from _judge(subject, family, denials)
    if unknown is not None:
        raise unknown


def _in_view(denials: _Denials) -> bool:
    """Whether a GPU was put into the process's own /dev, whatever it may then do with it."""
    return bool(denials.open_gpus) or any(gate.gate != "path" for gate in denials.gpus.values())


def _examine(subject: Subject, family: Family) -> _Denials:
    found = _Denials()
    for node, kind in [(n, found.gpus) for n in family.gpus] + [(n, found.control) for n in family.control]:
        if not node.right:
            continue  # wrong on the host itself: that is another finding, and the cause of this one
        answer = subject.access(node.path)
        gate = answer.denied_by
        if gate is None:
            if answer.verdict == "unknown":
                why = answer.unknown_because or ""
                found.unknown = found.unknown or Unknown(f"access of pid {subject.pid} to {node.path}", why)
            if kind is found.gpus:
                found.open_gpus.append(node.path)
        elif gate.gate in _RULES and _is_the_cause(subject, node, gate):
            kind[node.path] = gate
    return found


def _is_the_cause(subject: Subject, node: DeviceNode, gate: Gate) -> bool:
    if gate.gate == "mode" and was_tried(gate):
        return False  # the mode itself allows it: EACCES then comes from a security module
    return gate.gate == "path" or not _misnumbered(subject, node)


def _misnumbered(subject: Subject, node: DeviceNode) -> bool:
    own = subject.stat(node.path)
    return own is not None and (own.type, own.major, own.minor) != ("c", node.major, node.minor)


def _judge(subject: Subject, family: Family, denials: _Denials) -> Iterator[Finding]:
    faults = {path: gate for path, gate in denials.control.items() if not family.spared(subject, path, gate)}
    partial: dict[str, Gate] = {}
    if denials.open_gpus:
        partial = {path: gate for path, gate in denials.gpus.items() if gate.gate != "path"}
    else:
        # Where some GPUs were put into the view, those that were not are no fault.
        given = {path: gate for path, gate in denials.gpus.items() if gate.gate != "path"}
        faults = {**(given or denials.gpus), **faults}
    if inherited(subject) and _parent_uses(subject, family):
        return
    for gate, paths in _by_gate(faults):
        if not (gate.gate == "mode" and set(paths) <= told_closed(subject.machine)):
            yield _finding(subject, family, gate, paths, all_gpus=not denials.open_gpus)
    if subject.asked and not faults and not family.selected(subject):  # a variable brings its own findings
        for gate, paths in _by_gate(partial):
            if not (gate.gate == "mode" and set(paths) <= told_closed(subject.machine)):
                yield _partial(subject, family, gate, paths, denials.open_gpus)


def _parent_uses(subject: Subject, family: Family) -> bool:
    """Whether the parent, of the same access, works with GPUs too: then it bears the finding."""
    parent = Subject(subject.machine, subject.status.ppid, asked=False)
    try:
        return family.mapped(parent)
    except Unknown:
        return False


def _by_gate(gates: Mapping[str, Gate]) -> Iterable[tuple[Gate, tuple[str, ...]]]:
    """Nodes that the same gate at the same place denies, together."""
    groups: dict[tuple[str, str], list[str]] = {}
    first: dict[tuple[str, str], Gate] = {}
    for path, gate in gates.items():
        key = (gate.gate, gate.where if gate.gate.startswith("cgroup") and not was_tried(gate) else "")
        groups.setdefault(key, []).append(path)
        first.setdefault(key, gate)
    return [(first[key], tuple(paths)) for key, paths in groups.items()]


def _rule(family: Family, gate: Gate, paths: tuple[str, ...]) -> Rule:
    if gate.gate == "path" and paths == (NVIDIA_UVM,):
        return UVM_MISSING
    return AMD_KFD_PERM if gate.gate == "mode" and family.vendor == "amd" else _RULES[gate.gate]


def _finding(subject: Subject, family: Family, gate: Gate, paths: tuple[str, ...], *, all_gpus: bool) -> Finding:
    holding = [path for path in paths if path in subject.holds]
    severity: Severity = "error"
    effect = consequence(family.vendor, paths, all_gpus=all_gpus)
    if holding and not subject.asked:
        severity = "warning"  # what it opened before goes on working
        effect += f" It still holds {', '.join(holding)} open from before, which goes on working."
    cause = cause_of(Denial(subject, gate, paths))
    if cause is not None:
        return cause.rule.finding(
            f"{cause.says} {effect}",
            severity=severity,
            title=cause.title,
            evidence=cause.evidence,
            fix=cause.fix,
            target=target_of(subject, gate),
        )
    who = f"{subject.comm} (pid {subject.pid})"
    rule = _rule(family, gate, paths)
    return rule.finding(
        f"{_what(gate, paths, who)} {effect}",
        severity=severity,
        title="CUDA cannot start: the process's own /dev lacks nvidia-uvm" if rule is UVM_MISSING else None,
        evidence=evidence_of(subject, gate, paths),
        fix=fixes(subject, gate, paths),
        target=target_of(subject, gate),
    )


def _partial(subject: Subject, family: Family, gate: Gate, paths: tuple[str, ...], open_gpus: list[str]) -> Finding:
    who = f"{subject.comm} (pid {subject.pid})"
    renumber = " and counts them from 0" if family.vendor == "nvidia" else ""
    # Isolation is made with device filters. A mode or mount of its own for one node is seldom meant for that.
    meant = gate.gate.startswith("cgroup")
    doubt = "; that may be as it was meant" if meant else ""
    return _rule(family, gate, paths).finding(
        f"{_what(gate, paths, who)} It may open {', '.join(open_gpus)}{renumber}{doubt}.",
        severity="info" if meant else "warning",
        title="The process may open only some of the GPUs",
        evidence=evidence_of(subject, gate, paths),
        fix=() if meant else fixes(subject, gate, paths),
        target=target_of(subject, gate),
    )


def _what(gate: Gate, paths: tuple[str, ...], who: str) -> str:
    nodes = ", ".join(paths)
    if gate.gate == "path":
        return f"{nodes}: on the host, but not in the /dev that {who} sees."
    if gate.gate == "nodev":
        return f"{nodes}: in the view of {who} on a mount with the option nodev, so that open fails with EACCES."
    if gate.gate == "mode":
        return f"{nodes}: {gate.by}, and {gate.says}, that of {who}."
    if was_tried(gate):
        return f"{nodes}: {who} tries to open them and gets EPERM, which only a device filter of its cgroup answers."
    rule = f" by {gate.rule!r}" if gate.rule else ""
    return f"{nodes}: cgroup {gate.where} ({gate.by}) denies {who} access{rule}: open fails with EPERM."


@process_check(LAZY_NODES)
def never_made_for_a_sandbox(subject: Subject) -> Iterator[Finding]:
    """Nodes that the first program of the host would make, and a process that cannot: no setuid program helps it."""
    absent = [node for node in subject.machine.nvidia_nodes if node.required and node.actual is None]
    if not absent or not setuid_modprobe(subject.host.stat(NVIDIA_MODPROBE)):
        return  # without that program the host itself lacks them, and bears the finding
    if not subject.status.no_new_privs and setuid_modprobe(subject.stat(NVIDIA_MODPROBE)):
        return
    for family in families(subject.machine):
        if family.vendor == "nvidia" and uses(subject, family, in_view=False):
            paths = tuple(node.path for node in absent)
            yield LAZY_NODES.finding(
                f"No program of the host has made {', '.join(paths)} yet, and {subject.comm} (pid {subject.pid})"
                " cannot: its sandbox lets it run no setuid nvidia-modprobe.",
                title="GPU nodes were never made, and the process cannot make them",
                evidence=[
                    *(Evidence(path, "does not exist") for path in paths),
                    Evidence(f"/proc/{subject.pid}/status", f"NoNewPrivs: {int(bool(subject.status.no_new_privs))}"),
                    Evidence(f"/proc/{subject.pid}/root{NVIDIA_MODPROBE}", _own_modprobe(subject)),
                ],
                fix=[
                    Fix("Make the nodes on the host, then start it again", f"sudo {NVIDIA_MODPROBE} -c=0 -u"),
                    Fix("Have it done at every boot", "sudo systemctl enable --now nvidia-persistenced"),
                ],
                target=target_of(subject, None),
            )


def _own_modprobe(subject: Subject) -> str:
    node = subject.stat(NVIDIA_MODPROBE)
    return "does not exist" if node is None else f"mode {node.mode:04o} uid {node.uid}"


@process_check(UVM_MAJOR_MISMATCH, DEV_NUMBERS)
def misnumbered_in_view(subject: Subject) -> Iterator[Finding]:
    """Nodes in a private /dev with other numbers than the driver registered, mostly from before a reboot."""
    for family in families(subject.machine):
        if family.vendor != "nvidia" or (family.hidden(subject) and not subject.asked):
            continue
        wrong = [
            node
            for node in (*family.control, *family.gpus)
            if node.right and _misnumbered(subject, node) and not _host_is_same(subject, node)
        ]
        wrong = [node for node in wrong if not _told_stale(subject, node)]
        if wrong and uses(subject, family, in_view=True):
            for rule in (UVM_MAJOR_MISMATCH, DEV_NUMBERS):
                nodes = [node for node in wrong if (node.role == "uvm") == (rule is UVM_MAJOR_MISMATCH)]
                if nodes:
                    yield _misnumbered_finding(subject, rule, nodes)


def _host_is_same(subject: Subject, node: DeviceNode) -> bool:
    own, on_host = subject.stat(node.path), node.actual
    if own is None or on_host is None:
        return False
    return (own.type, own.major, own.minor) == (on_host.type, on_host.major, on_host.minor)


def _told_stale(subject: Subject, node: DeviceNode) -> bool:
    """Whether the numbers are those of a CDI specification, which bears the finding."""
    own = subject.stat(node.path)
    if own is None or own.type not in ("b", "c"):
        return False
    return (node.path, own.major, own.minor) in stale_numbers(subject.machine)


def _misnumbered_finding(subject: Subject, rule: Rule, nodes: list[DeviceNode]) -> Finding:
    seen = []
    for node in nodes:
        own = subject.stat(node.path)
        numbers = "gone" if own is None else f"{own.type} {own.major}:{own.minor}"
        seen.append(Evidence(f"/proc/{subject.pid}/root{node.path}", numbers))
    first = nodes[0]
    return rule.finding(
        f"In the /dev of {subject.comm} (pid {subject.pid}) {first.path} is {seen[0].says}, but the driver registered"
        f" c {first.major}:{first.minor}. Opening it reaches no driver, or another one.",
        evidence=[*seen, Evidence("/proc/devices", f"{first.major} belongs to the driver of {first.path}")],
        fix=[
            Fix(
                "Start the container again: its nodes were made for another boot or driver. A CDI specification,"
                " LXC configuration or script with fixed numbers must be written anew first",
                "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
            )
        ],
        target=target_of(subject, None),
    )
