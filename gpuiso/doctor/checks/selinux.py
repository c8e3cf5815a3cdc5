# SPDX-License-Identifier: Apache-2.0
"""Accesses to GPU nodes that SELinux denies: open fails with EACCES although mode and owner allow it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gpuiso.doctor.checks.access_words import target_of, was_tried
from gpuiso.doctor.finding import Evidence, Finding, Fix, Rule, Target
from gpuiso.doctor.machine import Machine, Subject
from gpuiso.doctor.registry import machine_check, process_check
from gpuiso.errors import NotFound, Unknown

__all__: list[str] = []

SELINUX = Rule(
    "GPU-SELINUX-DENY",
    "error",
    "SELinux denies the process the GPU nodes",
    "SELinux enforces a policy that does not let the domain of the process (container_t) use GPU nodes",
    (
        "https://github.com/fedora-selinux/selinux-policy/issues/1695",
        "https://github.com/NVIDIA/enroot/issues/88",
    ),
)

ENFORCE = "/sys/fs/selinux/enforce"
AUDIT = "/var/log/audit/audit.log"
_AVC = re.compile(
    r"avc:\s+denied\s+\{ ([^}]*)\} for .*?\bpid=(\d+)\b.*?(?:path=\"(/dev/nvidia[^\"]*)\"|name=\"(nvidia[^\"]*)\").*?"
    r"scontext=(\S+) tcontext=(\S+) tclass=chr_file permissive=0"
)
_HOOK = re.compile(r"nvidia-container-cli: permission error: capability change failed: operation not permitted")


@dataclass(frozen=True, slots=True)
class _Denied:
    what: str
    node: str
    source: str
    target: str

    def __str__(self) -> str:
        return f"avc: denied {{ {self.what} }} for {self.node} scontext={self.source} tcontext={self.target}"


def _enforces(machine: Machine) -> bool:
    return (machine.host.text(ENFORCE) or "").strip() == "1"


def _type(context: str) -> str:
    fields = context.split(":")
    return fields[2] if len(fields) > 2 else context


def _denials(machine: Machine) -> Iterator[tuple[str, _Denied]]:
    """Denied accesses to GPU nodes: of auditd's log, or the kernel's where no auditd runs."""
    for source in (AUDIT, "kernel log"):
        try:
            text = (machine.host.text(AUDIT) or "") if source == AUDIT else "\n".join(machine.audit_log)
        except Unknown:
            continue  # the other one may tell
        for match in _AVC.finditer(text):
            node = match[3] or f"/dev/{match[4]}"
            yield source, _Denied(match[1].strip(), node, match[5], match[6])


@process_check(SELINUX)
def denied_by_selinux(subject: Subject) -> Iterator[Finding]:
    """A tried access that fails with EACCES although the mode allows it, or a denial of its domain in the log."""
    machine = subject.machine
    if not machine.nvidia or not (subject.asked or _tried(subject)) or not _enforces(machine):
        return
    own = (subject.host.text(f"/proc/{subject.pid}/attr/current") or "").strip("\0\n ")
    tried = _tried(subject)
    logged = [(source, each) for source, each in _denials(machine) if _type(each.source) == _type(own)]
    if not tried and (not logged or _type(own) == "unconfined_t"):
        return
    nodes = tried or sorted({each.node for _, each in logged if subject.stat(each.node) is not None})
    if not nodes:
        return
    evidence = [Evidence(ENFORCE, "1: SELinux enforces its policy"), Evidence(f"/proc/{subject.pid}/attr/current", own)]
    evidence += [Evidence(path, f"tried in its place: {_says(subject, path)}") for path in tried]
    evidence += [Evidence(source, str(each)) for source, each in logged[-2:]]
    evidence += _labels(subject, nodes)
    yield SELINUX.finding(
        f"{subject.comm} (pid {subject.pid}) runs in the domain {_type(own)}, which SELinux does not let use"
        f" {', '.join(nodes)}: open fails with EACCES, although the mode of the nodes allows it.",
        evidence=evidence,
        fix=[
            Fix(
                "Let containers use devices (container-selinux; not tried here)",
                "sudo setsebool -P container_use_devices on",
            ),
            Fix("Or start this container without labels", "podman run --security-opt label=disable IMAGE"),
        ],
        target=target_of(subject, None),
    )


def _tried(subject: Subject) -> list[str]:
    """Nodes for which an access in the process's place met EACCES that no mode or mount explains."""
    found = []
    for path, answer in subject.denied.items():
        gate = answer.denied_by
        if gate is not None and gate.gate == "mode" and was_tried(gate):
            found.append(path)
    return found


def _says(subject: Subject, path: str) -> str:
    gate = subject.access(path).denied_by
    return "" if gate is None else gate.says


def _labels(subject: Subject, nodes: list[str]) -> Iterator[Evidence]:
    for path in nodes:
        try:
            label = subject.host.getxattr(f"/proc/{subject.pid}/root{path}", "security.selinux")
        except (NotFound, Unknown):
            continue
        if label is not None:
            yield Evidence(f"security.selinux of {path}", label.decode("utf-8", "replace").rstrip("\0"))


@machine_check(SELINUX)
def hook_blocked(machine: Machine) -> Iterator[Finding]:
    """NVIDIA's hook itself, which SELinux does not let set its capabilities."""
    if not machine.nvidia:
        return
    for identifier, container in sorted(machine.host.docker_containers().items()):
        state = container.get("State") or {}
        message = _HOOK.search(" ".join(str(state.get("Error") or "").split()))
        if message is None or state.get("Running") or not _enforces(machine):
            continue
        name = str(container.get("Name") or identifier[:12]).lstrip("/")
        yield SELINUX.finding(
            f"Container {name} cannot start: NVIDIA's hook may not set its capabilities, and SELinux enforces its"
            " policy on this host.",
            title="SELinux keeps NVIDIA's hook from working",
            evidence=[
                Evidence(f"docker inspect {name}: State.Error", message[0]),
                Evidence(ENFORCE, "1: SELinux enforces its policy"),
            ],
            fix=[
                Fix("See what was denied", "sudo ausearch -m avc -ts recent"),
                Fix("Give the container its GPU by CDI, whose hooks run without those capabilities (not tried here)"),
            ],
            target=Target(container=identifier),
        )
