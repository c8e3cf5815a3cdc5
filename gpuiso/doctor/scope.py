# SPDX-License-Identifier: Apache-2.0
"""What is examined: which processes, and what they are asked about as.

A container or a unit is examined as its processes; of those that no check can tell apart, one stands for all.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from gpuiso.doctor.finding import Target
from gpuiso.doctor.machine import Machine
from gpuiso.errors import NotFound, Unknown
from gpuiso.gpu.holders import GPU_NODES
from gpuiso.gpu.visibility.names import VARIABLES
from gpuiso.host import process
from gpuiso.host.cgroup_members import CgroupMembers
from gpuiso.host.containers import Containers, unit_in_path
from gpuiso.host.protocol import Host

__all__ = ["Note", "Scope", "container_scope", "everything", "gpu_users", "process_scope", "unit_scope"]

Note = Callable[[str, str], None]

_NAMES = tuple(name.encode() for name in VARIABLES)
_SUFFIXES = (".service", ".scope", ".slice", ".socket", ".mount", ".swap", ".target", ".timer", ".path", ".device")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Scope:
    """``pids`` to examine. ``asked``: the user named them, or what they belong to; ``what`` is that in words.

    ``first`` is the process whose end is the end of what was asked about. ``target`` goes into every finding.
    ``alike`` are the processes that are not looked at because the one that is looks the same.
    """

    pids: tuple[int, ...]
    asked: bool = False
    what: str = ""
    first: int | None = None
    target: Target | None = None
    alike: Mapping[int, tuple[int, ...]] = field(default_factory=dict)


def process_scope(host: Host, pid: int) -> Scope:
    """One process. :raises NotFound: there is no such process."""
    process.require(host, pid)
    return Scope((pid,), asked=True, what=f"process {pid}", first=pid)


def container_scope(machine: Machine, word: str) -> Scope:
    """The processes of a container, named by its id, the beginning of that, or its name.

    :raises NotFound: there is no such container, more than one, or it does not run.
    """
    container = machine.containers.find(word)
    what = f"{container.engine} container {container.short}"
    if container.pid is None:
        raise NotFound(f"{what} is not running: there is no process to examine", hint="start it, then ask again")
    pids = machine.members.below(container.cgroup) if container.cgroup is not None else ()
    target = Target(container=container.id)
    first = container.pid
    return Scope(unlike(machine.host, {first: None, **dict.fromkeys(pids)}), True, what, first, target)


def unit_scope(machine: Machine, name: str) -> Scope:
    """The processes of a systemd unit, of the system manager or of a user's. ``.service`` may be left out.

    :raises NotFound: there is no such unit, or it has no process.
    """
    name = name if name.endswith(_SUFFIXES) else f"{name}.service"
    properties, why = _properties(machine.host, name)
    cgroup = properties.get("ControlGroup") or _cgroup_named(machine, name)
    what = f"unit {name}"
    if cgroup is None:
        if not properties:
            raise NotFound(f"no {what} on {machine.host.name}", hint=why)
        state = properties.get("ActiveState", "inactive")
        raise NotFound(f"{what} is {state}: there is no process to examine", hint=f"systemctl start {name}")
    pids = machine.members.below(cgroup)
    if not pids:
        raise NotFound(f"{what} has no process: there is nothing to examine")
    main = properties.get("MainPID")
    first = main if isinstance(main, int) and main in pids else None
    ordered = dict.fromkeys(pids if first is None else (first, *pids))
    target = Target(unit=str(properties.get("Id") or name))
    return Scope(unlike(machine.host, ordered), True, what, first, target)


def _properties(host: Host, name: str) -> tuple[dict[str, Any], str | None]:
    """What systemd says of a unit; nothing, and why, if it says nothing."""
    try:
        return host.unit(name) or {}, None
    except Unknown as error:
        return {}, error.message


def _cgroup_named(machine: Machine, name: str) -> str | None:
    """The cgroup of a unit that the system manager does not know: a user's, or one of a record without units."""
    found = [path for path in machine.members.paths if path.endswith(f"/{name}")]
    tops = [path for path in found if not any(path.startswith(f"{other}/") for other in found)]
    if len(tops) > 1:
        raise NotFound(f"{name!r} names {len(tops)} units: {', '.join(sorted(tops)[:8])}")
    return tops[0] if tops else None


def gpu_users(machine: Machine, note: Note) -> Scope:
    """The processes that hold a GPU node or carry a variable that selects GPUs."""
    host = machine.host
    if not machine.inventory.gpus:
        return Scope(())  # a variable that selects GPUs selects nothing here, and harms nobody
    try:
        pids = host.pids()
    except Unknown as error:
        note(error.what, error.why)
        return Scope(())
    found = []
    closed = 0
    for pid in pids:
        answers = [_unless_unknown(question, host, pid) for question in (_selects, _holds)]
        if any(answers):
            found.append(pid)
        elif None in answers:
            closed += 1
    if closed:
        note(f"{closed} of {len(pids)} processes", "not permitted to read them, or not recorded")
    return _one_of_each(host, found)


def everything(machine: Machine, note: Note) -> Scope:
    """The first process of every container, one of each kind in every unit, and all that hold or select a GPU."""
    host = machine.host
    users = gpu_users(machine, note)
    if not machine.inventory.gpus:
        return users
    try:
        members = machine.members
    except Unknown:
        return users  # noted already
    containers = machine.containers
    for path, why in containers.missing.items():
        if why.startswith("not permitted"):
            note(path, why)
    firsts = {container.pid for container in containers.all if container.pid is not None}
    known = {*users.pids, *(pid for pids in users.alike.values() for pid in pids)}
    wanted = {*known, *firsts, *_unit_firsts(members, containers)}
    return _one_of_each(host, sorted(wanted))


def _unit_firsts(members: CgroupMembers, containers: Containers) -> Iterable[int]:
    """The process with the lowest number of each unit; what is in a container is not the unit's own."""
    found: dict[str, int] = {}
    for pid in sorted(members.places):
        for path in members.places[pid]:
            unit = unit_in_path(path)
            if unit is not None and containers.at((path,)) is None:
                found.setdefault(unit, pid)
    return found.values()


def unlike(host: Host, pids: Iterable[int]) -> tuple[int, ...]:
    """One process of each kind, the first one: what was started alike in the same place looks alike to every check."""
    return tuple({_kind(host, pid): pid for pid in reversed(tuple(pids))}.values())[::-1]


def _one_of_each(host: Host, pids: Iterable[int]) -> Scope:
    """One process of each kind that one parent started: whether a process only repeats its parent is asked as well."""
    kinds: dict[Hashable, list[int]] = {}
    for pid in pids:
        kinds.setdefault((_parent(host, pid), _kind(host, pid)), []).append(pid)
    return Scope(
        tuple(members[0] for members in kinds.values()),
        alike={members[0]: tuple(members[1:]) for members in kinds.values() if len(members) > 1},
    )


def _parent(host: Host, pid: int) -> int | None:
    try:
        return process.status(host, pid).ppid
    except (NotFound, Unknown):
        return None


def _kind(host: Host, pid: int) -> Hashable:
    base = f"/proc/{pid}"
    try:
        status = process.status(host, pid)
        known = (host.text(f"{base}/cgroup"), host.readlink(f"{base}/ns/mnt"), host.read(f"{base}/environ"))
        holds = frozenset(process.device_descriptors(host, pid, GPU_NODES))
    except (NotFound, Unknown):
        return pid
    return (
        known,
        holds,
        tuple(_or_none(host.readlink, f"{base}/{link}") for link in ("ns/user", "root", "exe")),
        _or_none(host.text, f"{base}/attr/current"),
        (status.name, status.uid, status.gid, status.groups, status.cap_eff, status.seccomp, status.no_new_privs),
    )


def _or_none(question: Callable[[str], _T | None], path: str) -> _T | None:
    try:
        return question(path)
    except Unknown:
        return None


def _selects(host: Host, pid: int) -> bool:
    data = host.read(f"/proc/{pid}/environ")
    return data is not None and any(name in data for name in _NAMES)


def _holds(host: Host, pid: int) -> bool:
    return bool(process.device_descriptors(host, pid, GPU_NODES))


def _unless_unknown(question: Callable[[Host, int], bool], host: Host, pid: int) -> bool | None:
    try:
        return question(host, pid)
    except NotFound:
        return False
    except Unknown:
        return None
