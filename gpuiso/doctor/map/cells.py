# SPDX-License-Identifier: Apache-2.0
"""Judges the cells of one workload."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from gpuiso.doctor.gates import Gate, Verdict
from gpuiso.doctor.machine import Machine
from gpuiso.doctor.map.access import Access, Answer
from gpuiso.doctor.map.memory import Memory
from gpuiso.doctor.map.model import Cell, Column, Member, State
from gpuiso.doctor.map.selection import Selection, select

__all__ = ["cells_of", "closed_nodes"]


@dataclass(frozen=True, slots=True)
class _Group:
    """Processes of one workload that the gates treat alike and whose environment selects alike.

    ``own`` and ``whole`` are answers by column: for the GPU's own nodes, and with the shared ones. ``selection`` is
    None where the environment is not known. ``given`` are columns whose nodes somebody put into the processes' own
    /dev.
    """

    members: tuple[Member, ...]
    own: dict[str, Answer]
    whole: dict[str, Answer]
    selection: Selection | None
    given: frozenset[str]

    def selects(self, column: Column) -> bool | None:
        """Whether the column is selected; None where nothing selects among its vendor's GPUs."""
        chosen = None if self.selection is None else self.selection.get(column.gpu.vendor)
        return None if chosen is None else column.id in chosen


def cells_of(
    machine: Machine,
    access: Access,
    columns: Sequence[Column],
    memory: Memory | None,
    members: Sequence[Member],
    *,
    container: bool,
) -> tuple[Cell, ...]:
    """One cell for each column."""
    groups = [
        _group(machine, access, columns, alike, container=container) for alike in _alike(access, members).values()
    ]
    return tuple(_cell(columns, column, groups, memory, container=container) for column in columns)


def closed_nodes(access: Access, columns: Sequence[Column], members: Sequence[Member]) -> tuple[str, ...]:
    """The shared nodes that no process of a workload may open though one of the GPUs' own may be, and why not."""
    found: dict[str, str] = {}
    for column in columns:
        for member in {access.key(member): member for member in members}.values():
            if _worst(access.ask(member, node) for node in column.nodes).verdict == "deny":
                continue
            for node in column.shared:
                answer = access.ask(member, node)
                if answer.verdict == "deny" and answer.gate is not None:
                    found.setdefault(node, f"{node} may not be opened: {_reason(answer.gate)}")
    return tuple(found.values())


def _alike(access: Access, members: Sequence[Member]) -> dict[Hashable, list[Member]]:
    groups: dict[Hashable, list[Member]] = {}
    for member in members:
        env = None if member.env is None else tuple(sorted(member.env.items()))
        groups.setdefault((access.key(member), env), []).append(member)
    return groups


def _group(
    machine: Machine, access: Access, columns: Sequence[Column], alike: Sequence[Member], *, container: bool
) -> _Group:
    first = alike[0]
    answers = {node: access.ask(first, node) for column in columns for node in (*column.nodes, *column.shared)}
    own = {column.id: _worst(answers[node] for node in column.nodes) for column in columns}
    whole = {column.id: _worst(answers[n] for n in (*column.nodes, *column.shared)) for column in columns}
    selection: Selection | None = None
    if first.env is not None:
        absent = frozenset(node for column in columns for node in column.nodes if answers[node].absent)
        selection = select(machine.inventory, columns, first.env, absent=absent, container=container)
    given: frozenset[str] = frozenset()
    if container and access.private_dev(first):
        given = frozenset(c.id for c in columns if c.nodes and not any(answers[node].absent for node in c.nodes))
    return _Group(tuple(alike), own, whole, selection, given)


def _worst(answers: Iterable[Answer]) -> Answer:
    """What opening all of several nodes comes to; without any node, it cannot be known."""
    found = list(answers)
    for verdict in ("deny", "unknown", "allow"):
        for answer in found:
            if answer.verdict == verdict:
                return answer
    return Answer("unknown", Gate("path", "?", "unknown", "the driver", "the GPU's node is not known"), absent=False)


def _cell(
    columns: Sequence[Column], column: Column, groups: Sequence[_Group], memory: Memory | None, *, container: bool
) -> Cell:
    answer = _best(group.own[column.id] for group in groups)
    selected = _selected(column, groups)
    opened = _opened(column, groups)
    held = _held(column, groups, memory)
    lost = _lost(column, groups)
    in_use = bool(opened) or held is None or held > 0 if memory is not None else bool(opened)
    state: State
    says: str | None = None
    if lost is not None:
        state, says = "lost", lost
    elif answer.verdict == "unknown":
        state, says = "unknown", None if answer.gate is None else answer.gate.says
    elif answer.verdict == "deny":
        state = "kept" if in_use else "closed"
        if in_use and answer.gate is not None:
            says = f"it may not be opened any more ({_reason(answer.gate)}), but what is open stays open"
    elif selected is False and not _chosen_for_it(columns, column, groups, container=container):
        state, says = "leak", _leak(columns, column, groups)
    else:
        state = "use" if in_use else "ready" if selected else "may"
    return Cell(answer.verdict, answer.gate, selected, opened, held, state, says)


def _best(answers: Iterable[Answer]) -> Answer:
    found = list(answers)
    order: tuple[Verdict, ...] = ("allow", "unknown", "deny")
    return min(found, key=lambda answer: order.index(answer.verdict))


def _selected(column: Column, groups: Sequence[_Group]) -> bool | None:
    """Whether any process selects the GPU; None if none selects, or one that uses GPUs takes whatever there is.

    A shell that starts a program with a variable selects nothing itself, and says nothing about the program.
    """
    answers = [group.selects(column) for group in groups]
    if True in answers:
        return True
    for group in groups:
        if group.selects(column) is None and any(member.holds for member in group.members):
            return None
        if group.selection is None:
            return None
    return False if False in answers else None


def _chosen_for_it(columns: Sequence[Column], column: Column, groups: Sequence[_Group], *, container: bool) -> bool:
    """Whether whoever made a container gave it this GPU and not all: then its processes may well share them out."""
    if not container:
        return False
    given = frozenset[str]().union(*(group.given for group in groups))
    everything = {other.id for other in columns if other.gpu.vendor == column.gpu.vendor}
    runtime = any("NVIDIA_VISIBLE_DEVICES" in (member.env or {}) for group in groups for member in group.members)
    return column.id in given and not everything <= given and not runtime


def _lost(column: Column, groups: Sequence[_Group]) -> str | None:
    """Why a GPU that is selected or was given cannot be used; None if that is not so."""
    for group in groups:
        answer = group.whole[column.id]
        if answer.verdict != "deny" or answer.gate is None:
            continue
        if group.selects(column):
            return f"it is selected ({_words(group)}), but {_reason(answer.gate)}"
        if group.selects(column) is None and column.id in group.given:
            return f"its node is in the container's /dev, but {_reason(answer.gate)}"
    return None


def _leak(columns: Sequence[Column], column: Column, groups: Sequence[_Group]) -> str:
    chosen = [
        other.label
        for other in columns
        if other.gpu.vendor == column.gpu.vendor and any(group.selects(other) for group in groups)
    ]
    words = next((_words(group) for group in groups if group.selects(column) is False), "")
    return f"it may be opened, though {words} selects {', '.join(chosen) or 'no GPU'}"


def _words(group: _Group) -> str:
    env = group.members[0].env or {}
    shown = [f"{name}={value}" for name, value in env.items() if name.endswith(("VISIBLE_DEVICES", "MASK"))]
    return ", ".join(text if len(text) <= 90 else f"{text[:87]}..." for text in shown)


def _reason(gate: Gate) -> str:
    """Which gate denies. The rule of a program is left to explain: finding it costs more than all else here."""
    if gate.gate.startswith("cgroup") and gate.rule is None:
        return f"the device filter of {gate.where} denies it"
    return f"{gate.gate} at {gate.where}: {gate.says}"


def _opened(column: Column, groups: Sequence[_Group]) -> int | None:
    """Descriptors on the node that stands for the column alone: of a MIG device, its compute instance's."""
    total = 0
    for group in groups:
        for member in group.members:
            if member.holds is None:
                return None
            total += member.holds.get(column.nodes[-1], 0) if column.nodes else 0
    return total


def _held(column: Column, groups: Sequence[_Group], memory: Memory | None) -> int | None:
    if memory is None:
        return None
    total = 0
    for group in groups:
        for member in group.members:
            size = memory.get((member.pid, column.id), 0)
            if size is None:
                return None
            total += size
    return total
