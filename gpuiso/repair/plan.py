# SPDX-License-Identifier: Apache-2.0
"""The plan that lets a container open its GPUs again: rules into its unit, programs and lists of others widened."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuiso.apply.calls import Calls
from gpuiso.apply.plan import Plan
from gpuiso.apply.steps import ReplaceProgram, SetUnitProperties, Step, StepFailed, V1Devices
from gpuiso.apply.target import Place, Target
from gpuiso.apply.verify import Proof
from gpuiso.devfilter.insn import Malformed
from gpuiso.devfilter.widen import widen
from gpuiso.errors import GpuisoError, NotSupported, Unknown
from gpuiso.host import process
from gpuiso.host.cgroup_mounts import cgroup_mount
from gpuiso.host.protocol import Host, Node
from gpuiso.policy.rule import READ, WRITE, DeviceType, letters
from gpuiso.policy.v1 import V1State
from gpuiso.repair.denials import ACCESS, Denial, Filters
from gpuiso.repair.diagnose import Diagnosis, Lost
from gpuiso.repair.nodes import GpuNode, other_nodes

__all__ = ["Repair", "plan_repair", "repair_key"]

_WORDS = {"c": "char", "b": "block"}
_NO_POLICY = dict.fromkeys(("file", "rules", "default_allow", "gpu.max", "gpu.memory.max", "files"))


@dataclass(frozen=True)
class Repair(Plan):
    """``answers`` are what every node of the container's /dev answered before, by path; ``opens`` those to open."""

    host: Host | None = None
    pid: int = 0
    start: int = 0
    opens: tuple[str, ...] = ()
    answers: Mapping[str, str | None] = field(default_factory=dict)

    def describe(self) -> list[str]:
        steps = super().describe()
        others = f", and {len(self.answers)} other nodes of its /dev as before" if self.answers else ""
        return [*steps, f"verify: a child in its place may open {', '.join(self.opens)}{others}"]

    def verify(self, calls: Calls) -> Proof:
        """:raises StepFailed: a node still cannot be opened, or another one answers otherwise than before."""
        host, proof = self.host, Proof()
        if host is None:
            return proof
        try:
            self._try(host)
        except Unknown as error:
            self._read(host)
            proof.said.append(f"no access was tried: {error.why}; by the programs as they are now, all are allowed")
            return proof
        proof.said.append(f"{', '.join(self.opens)} tried from a child in its place: allowed")
        if self.answers:
            proof.said.append(f"{len(self.answers)} other nodes of its /dev tried: as before")
        return proof

    def _try(self, host: Host) -> None:
        if process.start_time(host, self.pid) != self.start:
            raise StepFailed(f"process {self.pid} ended meanwhile")
        for path in self.opens:
            if (errno := host.probe(self.pid, path, "rw")) is not None:
                raise StepFailed(f"a child in the place of process {self.pid} still gets {errno} from {path}")
        for path, before in self.answers.items():
            now = host.probe(self.pid, path, "rw")
            if now != before:
                words = f"{before or 'allowed'} before, {now or 'allowed'} now"
                raise StepFailed(f"{path} was not to be touched, and answers otherwise: {words}")

    def _read(self, host: Host) -> None:
        filters = Filters(host, self.pid)
        for path in self.opens:
            node = host.stat(f"/proc/{self.pid}/root{path}")
            if node is None or filters.denials("b" if node.type == "b" else "c", node.major or 0, node.minor or 0):
                raise StepFailed(f"{path} is still denied")


@dataclass(frozen=True)
class _Unit:
    """The unit that is the container's own cgroup, as systemd shows it."""

    name: str
    shown: Mapping[str, Any]

    @property
    def restricts(self) -> bool:
        return self.shown.get("DevicePolicy") not in (None, "auto") or bool(self.shown.get("DeviceAllow"))


def plan_repair(host: Host, calls: Calls, found: Diagnosis, policy_of: Mapping[str, Any] | None = None) -> Repair:
    """Changes nothing. ``policy_of`` is the policy of gpuiso's that was applied to the container, if one was.

    :raises NotSupported: what denies is not the container's own, or a policy of gpuiso's; or cannot be changed.
    """
    home = found.container.cgroup or "/"
    unit = _own_unit(host, calls, home)
    for lost in found.lost:
        for denial in lost.denials:
            _check_ours(denial, lost, home, unit, policy_of)
    others = list(other_nodes(host, found.pid, found.gpus))
    steps: list[Step] = []
    mount = cgroup_mount(host, "")
    place = Place(mount, home) if mount is not None and found.filters.tree else None
    if unit is not None and unit.restricts:
        entries = _entries(found, unit, others)
        if entries or _by_systemd(found.lost):
            steps.append(_set_properties(unit, entries, place))
    steps += _replaced(found, mount)
    v1 = found.filters.v1
    if v1 is not None and not any(isinstance(step, SetUnitProperties) for step in steps):
        steps += _v1(found, *v1)
    return Repair(
        Target(_key(home, unit), place, _v1_place(found), None if unit is None else unit.name),
        tuple(steps),
        None,
        _NO_POLICY,
        found.notes,
        host=host,
        pid=found.pid,
        start=found.start,
        opens=tuple(lost.node.path for lost in found.lost),
        answers=_answers(host, found.pid, [path for path, _ in others]),
    )


def repair_key(host: Host, calls: Calls, found: Diagnosis) -> str:
    """Under which name the repair is remembered, and a policy for the same container is."""
    home = found.container.cgroup or "/"
    return _key(home, _own_unit(host, calls, home))


def _key(home: str, unit: _Unit | None) -> str:
    return f"cgroup {home}" if unit is None else f"unit {unit.name}"


def _v1_place(found: Diagnosis) -> Place | None:
    return None if found.filters.v1 is None else Place(found.filters.v1[0], found.filters.v1[1])


def _own_unit(host: Host, calls: Calls, cgroup: str) -> _Unit | None:
    """None where the engine made the cgroup itself (cgroupfs), or below a unit that delegates."""
    if not host.systemd:
        return None
    name = calls.unit_by_cgroup(cgroup)
    if name is None:
        return None
    shown = calls.unit_properties(name)
    return _Unit(name, shown) if shown.get("ControlGroup") == cgroup and "DeviceAllow" in shown else None


def _check_ours(denial: Denial, lost: Lost, home: str, unit: _Unit | None, policy: Mapping[str, Any] | None) -> None:
    """Whether a denial may be lifted here."""
    what = f"{denial.words} denies {lost.node.path}"
    if denial.cgroup != home and not denial.cgroup.startswith(f"{home.rstrip('/')}/"):
        raise NotSupported(
            f"{what}, for everything below {denial.cgroup} and not for this container alone (gate: cgroup)",
            hint="change the rules there, or start the container elsewhere (--cgroup-parent)",
        )
    if denial.owner == "gpuiso" or (policy is not None and policy.get("rules") is not None):
        raise NotSupported(
            f"{what}, by a policy that gpuiso applied: that is meant, and nothing was lost",
            hint=f"gpuiso rules show --cgroup {home} shows it; gpuiso rules remove --cgroup {home} takes it away",
        )
    if denial.owner == "systemd" and (unit is None or denial.cgroup != home):
        raise NotSupported(
            f"{what}, and the cgroup is no unit of this host's systemd (a systemd inside the container?)",
            hint="change the unit inside the container: DeviceAllow=",
        )


def _by_systemd(lost: Iterable[Lost]) -> bool:
    return any(denial.owner in ("systemd", "cgroup v1") for each in lost for denial in each.denials)


def _entries(found: Diagnosis, unit: _Unit, others: Sequence[tuple[str, Node]]) -> list[list[str]]:
    """What the unit's list lacks: the container's GPUs, and whatever else it may open now.

    The latter matters where a runtime's program stands in the place of systemd's: systemd attaches its own again at
    any change, and what the list lacks would be lost by the repair.
    """
    listed = {(str(device), letter) for device, access in unit.shown["DeviceAllow"] for letter in access}
    wanted = {(lost.node.type, lost.node.major, lost.node.minor): ACCESS for lost in found.lost}
    wanted |= {(node.type, node.major, node.minor): ACCESS for node in found.has}
    if not _has_systemds(found):
        for _, node in others:
            bits = _allowed(found.filters, node)
            if bits:
                wanted[("b" if node.type == "b" else "c", node.major or 0, node.minor or 0)] = bits
    entries = []
    for (kind, major, minor), bits in wanted.items():
        device = f"/dev/{_WORDS[kind]}/{major}:{minor}"
        group = f"{_WORDS[kind]}-{major}"
        if not all({(device, letter), (group, letter)} & listed for letter in letters(bits)):
            entries.append([device, letters(bits)])
    return entries


def _has_systemds(found: Diagnosis) -> bool:
    return any(denial.owner == "systemd" for lost in found.lost for denial in lost.denials)


def _allowed(filters: Filters, node: Node) -> int:
    """The bits of read and write that a node's device is allowed, one by one."""
    kind: DeviceType = "b" if node.type == "b" else "c"
    major, minor = node.major or 0, node.minor or 0
    try:
        free = [bit for bit in (READ, WRITE) if not filters.denials(kind, major, minor, bit)]
    except Unknown:
        return 0
    return sum(free)


def _set_properties(unit: _Unit, entries: Sequence[list[str]], place: Place | None) -> SetUnitProperties:
    # systemd puts each entry before the others, and shows them in that order.
    present = [list(map(str, entry)) for entry in reversed(unit.shown["DeviceAllow"])]
    return SetUnitProperties(
        unit.name,
        (("DeviceAllow", [*present, *entries]),),
        runtime=True,
        transient=bool(unit.shown.get("Transient")),
        mount=None if place is None else place.mount,
        cgroup=None if place is None else place.cgroup,
    )


def _replaced(found: Diagnosis, mount: str | None) -> Iterator[Step]:
    """A step for each program of others that denies."""
    by_program: dict[tuple[str, int], list[GpuNode]] = {}
    for lost in found.lost:
        for denial in lost.denials:
            if denial.program is not None and denial.owner != "systemd":
                by_program.setdefault((denial.cgroup, denial.program.id), []).append(lost.node)
    for (cgroup, number), nodes in by_program.items():
        old = next(program for program in found.filters.programs(cgroup) if program.id == number)
        try:
            if old.insns is None:
                raise Malformed("the kernel does not show its instructions")
            new = widen(old.insns, [(node.type, node.major, node.minor, ACCESS) for node in nodes])
        except Malformed as error:
            raise NotSupported(f"program {number} at {cgroup} cannot be changed: {error}") from None
        words = ", ".join(f"{node.numbers} {letters(ACCESS)}" for node in nodes)
        yield ReplaceProgram(mount or "", cgroup, number, old.insns.hex(), new.hex(), words)


def _v1(found: Diagnosis, mount: str, cgroup: str, state: V1State) -> Iterator[Step]:
    """The list of cgroup v1 with the nodes added, where it is the engine's own and not a unit's."""
    nodes = [lost.node for lost in found.lost if any(denial.program is None for denial in lost.denials)]
    if nodes and state.exceptions is not None:
        wider = dict(state.exceptions)
        for node in nodes:
            key = (node.type, node.major, node.minor)
            wider[key] = wider.get(key, 0) | ACCESS
        yield V1Devices.of(mount, cgroup, V1State(state.default_allow, wider))


def _answers(host: Host, pid: int, paths: Iterable[str]) -> dict[str, str | None]:
    """What each node answers now; those that cannot be tried are left out."""
    found: dict[str, str | None] = {}
    for path in paths:
        try:
            found[path] = host.probe(pid, path, "rw")
        except GpuisoError:
            return {}  # it may be frozen; each further try would wait as long
    return found
