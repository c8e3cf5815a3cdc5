# SPDX-License-Identifier: Apache-2.0
"""What a container lost, what shows that it had it, and what keeps it from it now."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from gpuiso.doctor.gates import Explanation, Gate, explain
from gpuiso.doctor.machine import Machine, Subject
from gpuiso.errors import NotFound, NotSupported, Unknown
from gpuiso.host import process
from gpuiso.host.containers import Container
from gpuiso.host.protocol import Host
from gpuiso.repair.denials import Denial, Filters
from gpuiso.repair.given import by_program, signs
from gpuiso.repair.nodes import GpuNode, gpu_nodes

__all__ = ["Diagnosis", "Lost", "diagnose", "find"]

_FILTERS = ("cgroup-v2", "cgroup-v1", "probe")
_ADVICE = {
    "path": "create the container again with its GPUs: a running one cannot be given nodes",
    "nodev": "mount its /dev without nodev, and create it again",
    "mode": "change the node's mode or group, or run the container as a user that is in its group (--group-add)",
    "lsm": "allow it in the policy of the security module",
    "driver": "load the driver (nvidia-modprobe -u -c 0), or have the nodes made anew if its numbers changed",
}


@dataclass(frozen=True)
class Lost:
    """A node that the container has, was given (``sign`` tells how that is known) and cannot open."""

    node: GpuNode
    sign: str
    denials: tuple[Denial, ...]


@dataclass(frozen=True)
class Diagnosis:
    """``pid`` is the process that was looked at, ``start`` its start time; ``has`` the GPU nodes it may open."""

    container: Container
    pid: int
    start: int
    lost: tuple[Lost, ...]
    has: tuple[GpuNode, ...]
    filters: Filters
    gpus: tuple[GpuNode, ...]
    notes: tuple[str, ...]


def find(machine: Machine, *, container: str | None, pid: int | None) -> tuple[Container, int]:
    """The container that is meant, and the process of it that is looked at.

    :raises NotFound: there is none, or it does not run; or the process is in none.
    """
    if container is not None:
        found = machine.containers.find(container)
        if found.pid is None or found.cgroup is None:
            raise NotFound(f"container {found.short} does not run")
        return found, found.pid
    process.require(machine.host, pid or 0)
    inside = Subject(machine, pid or 0, asked=True).container
    if inside is None or inside.cgroup is None:
        raise NotFound(
            f"process {pid} is in no container",
            hint=f"gpuiso doctor --pid {pid} tells what keeps it from GPUs, and what to do",
        )
    return inside, pid or 0


def diagnose(machine: Machine, container: Container, pid: int, *, named: Collection[str] = ()) -> Diagnosis:
    """``named`` are nodes that the operator says the container is to have.

    :raises NotSupported: something that no rule can put right keeps it from a GPU, or nothing shows that it had it.
    :raises Unknown: what filters its devices cannot be read.
    """
    host = machine.host
    start = process.start_time(host, pid)
    gpus = gpu_nodes(machine)
    _check_named(gpus, named)
    filters = Filters(host, pid)
    shown = signs(machine, container, gpus)
    blocked: list[str] = []
    notes: list[str] = []
    denied: dict[GpuNode, tuple[Denial, ...]] = {}
    has: list[GpuNode] = []
    for node in gpus:
        answer = _answer(host, pid, node, asked_for=node.path in shown or node.path in named)
        if answer is None:
            continue
        if isinstance(answer, str):
            (blocked if node.needed else notes).append(answer)
            continue
        denials = tuple(filters.denials(node.type, node.major, node.minor))
        others = [gate for gate in answer.passive if gate.verdict == "deny" and gate.gate not in _FILTERS]
        hard = next((gate for gate in others if gate.gate != "driver" or not denials), None)
        if hard is not None:
            (blocked if node.needed else notes).append(_blocked(node, hard, pid))
        elif denials:
            denied[node] = denials
            notes += [f"{node.path}: {gate.says}" for gate in others if gate.gate == "driver"]
        elif (why := _denied_unseen(answer)) is not None:
            raise Unknown(f"who keeps the container from {node.path}", why)
        else:
            has.append(node)
    if blocked:
        raise NotSupported("; ".join(blocked), hint=f"gpuiso explain --pid {pid} NODE shows every gate")
    lost, unshown = _lost(denied, shown, named, filters, has)
    if unshown:
        _say_unshown(container, unshown, notes, nothing_else=not lost)
    return Diagnosis(container, pid, start, tuple(lost), tuple(has), filters, gpus, tuple(notes))


def _check_named(gpus: Sequence[GpuNode], named: Collection[str]) -> None:
    known = [node.path for node in gpus]
    for path in named:
        if path not in known:
            raise NotFound(f"{path} is no GPU node of this host", hint=f"there are {', '.join(known) or 'none'}")


def _answer(host: Host, pid: int, node: GpuNode, *, asked_for: bool) -> Explanation | str | None:
    """The gates of a node; a sentence if it is not the right node; None if it is not there, nor asked for."""
    inside = host.stat(f"/proc/{pid}/root{node.path}")
    if inside is None:
        if not asked_for:
            return None
        return f"{node.path} is missing in the container's /dev (gate: path): {_ADVICE['path']}"
    if not node.is_at(inside):
        if not (asked_for or node.needed):
            return None
        numbers = f"{inside.type} {inside.major}:{inside.minor}"
        return (
            f"{node.path} of the container is {numbers}, the device is {node.numbers} (gate: path): {_ADVICE['path']}"
        )
    return explain(host, pid, node.path, "rw", probe=host.live, rules=False)


def _blocked(node: GpuNode, gate: Gate, pid: int) -> str:
    advice = _ADVICE.get(gate.gate, f"gpuiso doctor --pid {pid} tells more")
    return f"{node.path}: the gate {gate.gate} at {gate.where} denies it ({gate.says}): {advice}"


def _denied_unseen(answer: Explanation) -> str | None:
    gate = answer.denied_by
    if gate is not None:
        return f"{gate.by}: {gate.says}, and no device program or list that was read denies it"
    if answer.probed is None or answer.probed.verdict != "unknown":
        return None
    return answer.unknown_because if answer.verdict == "unknown" and _only_filters(answer) else None


def _only_filters(answer: Explanation) -> bool:
    return any(gate.verdict == "unknown" and gate.gate in _FILTERS[:2] for gate in answer.passive)


def _lost(
    denied: Mapping[GpuNode, tuple[Denial, ...]],
    shown: Mapping[str, str],
    named: Collection[str],
    filters: Filters,
    has: Sequence[GpuNode],
) -> tuple[list[Lost], list[GpuNode]]:
    """What of the denied nodes is the container's, and what of GPUs' own nodes nothing shows to be.

    A shared node is nobody's by itself: it is the container's with the first GPU that is.
    """
    cgroups = tuple({denial.cgroup for denials in denied.values() for denial in denials if denial.program is not None})
    reasons: dict[GpuNode, str] = {}
    for node in denied:
        sign = "it was named" if node.path in named else shown.get(node.path)
        sign = sign or by_program(node, filters.beside(node.type, node.major, node.minor, cgroups))
        if sign is not None:
            reasons[node] = sign
    owned = next((node for node in (*reasons, *has) if not node.shared), None)
    if owned is not None and any(node.needed for node in denied):
        for node in denied:
            if node.shared and node not in reasons:
                reasons[node] = f"it goes with {owned.path}"
    lost = [Lost(node, reasons[node], denials) for node, denials in denied.items() if node in reasons]
    return lost, [node for node in denied if node not in reasons and node.needed]


def _say_unshown(container: Container, nodes: Sequence[GpuNode], notes: list[str], *, nothing_else: bool) -> None:
    paths = ", ".join(node.path for node in nodes)
    said = (
        f"container {container.short} may not open {paths}, and nothing shows that it ever was given that: no request "
        "in its configuration, no mount, no program that allows it"
    )
    if nothing_else:
        own = [node.path for node in nodes if not node.shared] or [nodes[0].path]
        raise NotSupported(said, hint=f"if it is to have them: {' '.join(f'--node {path}' for path in own)}")
    notes.append(said)
