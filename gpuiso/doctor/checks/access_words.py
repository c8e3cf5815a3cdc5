# SPDX-License-Identifier: Apache-2.0
"""What to say about a node that a process cannot open: evidence, effect, and how to open it."""

from __future__ import annotations

import re
from dataclasses import replace
from shlex import join, quote

from gpuiso.doctor.finding import Evidence, Fix, Target
from gpuiso.doctor.gates import Gate
from gpuiso.doctor.machine import Subject
from gpuiso.errors import NotFound, Unknown
from gpuiso.gpu.model import Vendor
from gpuiso.host.cgroup_mounts import cgroup_mount
from gpuiso.host.mounts import covering_mount, mounts
from gpuiso.host.process import cgroups

__all__ = ["consequence", "evidence_of", "fixes", "target_of", "was_tried"]

_UNIT = re.compile(r"([^/]+\.(?:service|scope))(?:/|$)")


def consequence(vendor: Vendor, paths: tuple[str, ...], *, all_gpus: bool) -> str:
    """What the process notices."""
    if vendor == "amd":
        return "ROCm finds no GPU." if all_gpus or "/dev/kfd" in paths else "ROCm cannot use that GPU."
    if vendor == "intel":
        return "Level Zero finds no GPU."
    if all_gpus or "/dev/nvidiactl" in paths:
        return "CUDA finds no GPU (cuInit fails with 100)."
    return "nvidia-smi works, but CUDA does not (cuInit fails with 999)."


def _cgroup(subject: Subject, gate: Gate | None) -> str | None:
    if gate is not None and gate.gate.startswith("cgroup") and not was_tried(gate):
        return gate.where
    try:
        places = cgroups(subject.host, subject.pid)
    except (NotFound, Unknown):
        return None  # it only names the target
    return places.get("") or places.get("devices")


def was_tried(gate: Gate) -> bool:
    """Whether an access in the process's place gave this answer, which names no cgroup."""
    return not gate.where.startswith("/")


def _own_cgroup(subject: Subject) -> str:
    return _cgroup(subject, None) or "/"


def target_of(subject: Subject, gate: Gate | None) -> Target:
    """The process, the container or unit it belongs to, and the cgroup of the gate or else its own."""
    return replace(subject.target, cgroup=_cgroup(subject, gate))


def evidence_of(subject: Subject, gate: Gate, paths: tuple[str, ...]) -> list[Evidence]:
    """What the gate was read from."""
    view = f"/proc/{subject.pid}/root"
    if gate.gate == "path":
        found = [Evidence(f"{view}{path}", _absence(subject, path)) for path in paths]
        return [*found, *_own_dev(subject)]
    if gate.gate == "nodev":
        return [Evidence(f"/proc/{subject.pid}/mountinfo", f"{gate.where}: {gate.by}, {gate.says}")]
    if gate.gate == "mode":
        status = subject.status
        groups = " ".join(str(group) for group in sorted(status.groups)) or "none"
        says = f"uid {status.uid} gid {status.gid} groups {groups}"
        return [
            *(Evidence(f"{view}{path}", _mode(subject, path)) for path in paths),
            Evidence(f"/proc/{subject.pid}/status", says),
        ]
    found = [Evidence(f"/proc/{subject.pid}/cgroup", _own_cgroup(subject))]
    said: dict[tuple[str, str], list[str]] = {}
    for path in paths:
        answer = subject.access(path).denied_by
        if answer is not None:
            source, says = f"device filter of {answer.where}", f"{answer.says}, by {answer.by}"
            if was_tried(gate):
                source, says = answer.by, answer.says
            elif gate.gate == "cgroup-v1":
                source, _, says = answer.says.partition(" ")
            said.setdefault((source, says), []).append(path)
    found += [Evidence(source, f"{', '.join(nodes)}: {says}") for (source, says), nodes in said.items()]
    return found


def _absence(subject: Subject, path: str) -> str:
    gate = subject.access(path).denied_by
    return "does not exist" if gate is None else gate.says


def _own_dev(subject: Subject) -> list[Evidence]:
    """The mount of the process's /dev, which tells a private one from the host's."""
    try:
        mount = covering_mount(mounts(subject.host, subject.pid), "/dev")
    except Unknown:
        return []
    if mount is None:
        return []
    return [Evidence(f"/proc/{subject.pid}/mountinfo", f"/dev lies on {mount.fstype}, mounted on {mount.point}")]


def _mode(subject: Subject, path: str) -> str:
    node = subject.stat(path)
    return "gone" if node is None else f"mode {node.mode:04o} uid {node.uid} gid {node.gid}"


def fixes(subject: Subject, gate: Gate, paths: tuple[str, ...]) -> list[Fix]:
    """How to open the gate, for the container, unit or sandbox that the process belongs to."""
    if gate.gate == "mode":
        return _mode_fixes(subject, paths)
    if gate.gate == "nodev":
        return [
            Fix(
                "Mount it without nodev (not tried here; inside a user namespace the option is locked, and whoever"
                " makes the mount must leave it out)",
                f"sudo nsenter --target {subject.pid} --mount mount -o remount,bind,dev {quote(gate.where)}",
            )
        ]
    target = target_of(subject, gate)
    if target.container is not None:
        return [_container_fix()]
    if gate.gate == "path":
        return _missing_fixes(target.unit, paths)
    return _cgroup_fixes(subject, gate, paths)


def _container_fix() -> Fix:
    return Fix(
        "Create the container again with its GPUs requested by CDI (--device nvidia.com/gpu=UUID): then its engine"
        " knows the nodes, and neither an update of the container nor systemctl daemon-reload takes them away"
    )


def _mode_fixes(subject: Subject, paths: tuple[str, ...]) -> list[Fix]:
    nodes = [node for node in (subject.stat(path) for path in paths) if node is not None]
    groups = sorted({node.gid for node in nodes if node.gid and node.mode & 0o060 == 0o060})
    found = []
    if groups and target_of(subject, None).container is not None:
        options = " ".join(f"--group-add {gid}" for gid in groups)
        found.append(Fix(f"Start the container with the group of the nodes: {options}"))
    elif groups:
        names = ",".join(f'"$(getent group {gid} | cut -d: -f1)"' for gid in groups)
        user = f'"$(getent passwd {subject.status.uid} | cut -d: -f1)"'
        found.append(
            Fix(
                "Put the user into the group of the nodes; it counts from the next login, or restart of the service",
                f"sudo usermod -aG {names} {user}",
            )
        )
    if not groups or any(path.startswith("/dev/nvidia") for path in paths):
        found.append(Fix("Or open the nodes to everybody until the next boot", f"sudo chmod 0666 {join(paths)}"))
    return found


def _missing_fixes(unit: str | None, paths: tuple[str, ...]) -> list[Fix]:
    found = []
    if unit is not None and unit.endswith(".service"):
        found.append(
            Fix(
                "If the unit has PrivateDevices=yes, turn it off (sudo systemctl edit) and list the nodes with"
                " DeviceAllow= instead",
                f"systemctl show -p PrivateDevices,DevicePolicy,DeviceAllow,RootDirectory {quote(unit)}",
            )
        )
    binds = " ".join(f"--dev-bind {path} {path}" for path in paths)
    found.append(Fix(f"If a sandbox made this /dev, bind the nodes into it; for bubblewrap: {binds}"))
    return found


def _cgroup_fixes(subject: Subject, gate: Gate, paths: tuple[str, ...]) -> list[Fix]:
    where = gate.where if not was_tried(gate) else _own_cgroup(subject)
    if "/slurmstepd.scope/" in where or "/slurm" in where:
        return [Fix("Request the GPUs from Slurm (--gres=gpu:1): the job was given none, and its cgroup denies them")]
    unit = _UNIT.search(where)
    if unit is not None and where.endswith(unit[1]):
        allow = join(f"DeviceAllow={path} rw" for path in paths)
        return [
            Fix(
                "Let the unit use the nodes; systemd rewrites its filter at once (not tried here)",
                f"sudo systemctl set-property {quote(unit[1])} {allow}",
            )
        ]
    if gate.gate == "cgroup-v1":
        mount = _mount(subject, "devices") or "/sys/fs/cgroup/devices"
        lines = " && ".join(
            f"echo c {node.major}:{node.minor} rw > {quote(f'{mount}{where}/devices.allow')}"
            for node in (subject.stat(path) for path in paths)
            if node is not None
        )
        return [Fix("Allow the nodes (the cgroups above must allow them as well)", f"sudo sh -c {quote(lines)}")]
    mount = _mount(subject, "") or "/sys/fs/cgroup"
    return [
        Fix(
            "Whoever put the program on this cgroup must allow the nodes; this shows what is attached",
            f"sudo bpftool cgroup show {quote(mount + where)}",
        )
    ]


def _mount(subject: Subject, controller: str) -> str | None:
    try:
        return cgroup_mount(subject.host, controller)
    except Unknown:
        return None
