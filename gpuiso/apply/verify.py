# SPDX-License-Identifier: Apache-2.0
"""Prove that a policy holds: every program of every level is read back and run, and accesses are tried for real.

Reading covers what the policy says of each of its devices; trying shows that the kernel agrees, v1 controller
included. What denies more than the policy does is told apart from what allows more: the latter is never accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from gpuiso.apply.calls import Calls
from gpuiso.apply.steps.base import StepFailed
from gpuiso.apply.target import Place, levels
from gpuiso.devfilter.interpret import Access
from gpuiso.devfilter.levels import Level, judge
from gpuiso.errors import Unknown
from gpuiso.host.device_programs import query_device_programs
from gpuiso.host.probe_cgroup import probe_cgroup
from gpuiso.policy.meaning import allowed_bits, permits
from gpuiso.policy.rule import ALL_ACCESS, MAX_MAJOR, MAX_MINOR, MKNOD, READ, WRITE, DeviceType, Rule

__all__ = ["MASKS", "MOST", "Proof", "Verification", "compare", "read_levels", "samples", "verify"]

MASKS = (MKNOD, READ, WRITE, READ | WRITE)
MOST = 128
"""Devices that are looked at. The program of a larger policy has been compared as a whole before."""


@dataclass(frozen=True)
class Verification:
    """What is to hold in a cgroup. ``narrower`` accepts that something else denies more than the rules do."""

    v2: Place | None
    v1: Place | None
    rules: tuple[Rule, ...]
    default_allow: bool
    narrower: bool = False

    def describe(self) -> str:
        return (
            "verify: read the device programs of every level back, run them for the devices of each rule and compare "
            "with the policy; then try the accesses from a child inside the cgroup"
        )


@dataclass
class Proof:
    """What was seen to hold, and the accesses that something else denies although the rules allow them, and who."""

    said: list[str] = field(default_factory=list)
    denied: dict[Access, str] = field(default_factory=dict)

    @property
    def narrower(self) -> list[str]:
        """What to say of the denied ones; at most MOST sentences."""
        return list(self.denied.values())[:MOST]


def samples(rules: Sequence[Rule]) -> list[tuple[DeviceType, int, int]]:
    """Devices that stand for all of which the rules speak, and ones of which none does; at most about MOST.

    A wildcard is stood for by a number that no rule names.
    """
    majors = {rule.major for rule in rules}
    minors = {rule.minor for rule in rules}
    free_major = next(number for number in range(MAX_MAJOR, -1, -1) if number not in majors)
    free_minor = next(number for number in range(MAX_MINOR, -1, -1) if number not in minors)
    found: dict[tuple[DeviceType, int, int], None] = {}
    every = max(1, -(-len(rules) // MOST))
    for rule in rules[::every]:
        kinds: tuple[DeviceType, ...] = ("c", "b") if rule.type == "a" else (rule.type,)
        major = free_major if rule.major is None else rule.major
        minor = free_minor if rule.minor is None else rule.minor
        found.update(dict.fromkeys((kind, major, minor) for kind in kinds))
    for rule in rules[::every]:
        if rule.major is not None and rule.minor is not None and len(found) < MOST:
            found[("b" if rule.type == "b" else "c", rule.major, free_minor)] = None
    found.update({("c", free_major, free_minor): None, ("b", free_major, free_minor): None})
    return list(found)


def read_levels(place: Place) -> list[Level]:
    """The programs of a v2 cgroup and of all above it, from the root down, as the kernel shows them now."""
    found = []
    for path in levels(place.cgroup):
        try:
            programs = query_device_programs(f"{place.mount}{path.rstrip('/')}", path)
        except Unknown:
            programs = None
        else:
            programs = programs or ()
        found.append(Level(path, programs))
    return found


def verify(wanted: Verification, calls: Calls, *, scratch: str | None = None) -> Proof:
    """:raises StepFailed: the kernel answers otherwise than the policy says; the message tells where and how."""
    proof = Proof()
    compare(wanted, proof)
    accesses, expected = _questions(wanted)
    _by_trying(wanted, accesses, expected, proof, calls, scratch)
    return proof


def compare(wanted: Verification, proof: Proof) -> None:
    """The part of ``verify`` that only reads."""
    if wanted.v2 is not None:
        accesses, expected = _questions(wanted)
        _by_reading(wanted, wanted.v2, accesses, expected, proof)


def _questions(wanted: Verification) -> tuple[list[Access], list[bool]]:
    devices = samples(wanted.rules)
    accesses = [Access(kind, major, minor, mask) for kind, major, minor in devices for mask in MASKS]
    return accesses, [_expected(wanted, access) for access in accesses]


def _expected(wanted: Verification, access: Access) -> bool:
    bits = allowed_bits(wanted.rules, access.type, access.major, access.minor, default_allow=wanted.default_allow)
    return permits(bits & ALL_ACCESS, access.mask)


def _by_reading(
    wanted: Verification, place: Place, accesses: Sequence[Access], expected: Sequence[bool], proof: Proof
) -> None:
    tree = read_levels(place)
    unknown: str | None = None
    for access, allowed in zip(accesses, expected, strict=True):
        verdict = judge(tree, access, rules=False)
        if verdict.value == "unknown":
            unknown = unknown or next(level.why for level in verdict.levels if level.value == "unknown")
        elif verdict.value == "allow" and not allowed:
            raise StepFailed(f"{place.cgroup} would allow {access}, which the policy denies")
        elif verdict.value == "deny" and allowed:
            level = next(level for level in verdict.levels if level.value == "deny")
            program = next(program for program in level.programs if program.value == "deny")
            by = f"program {program.program.id} of {program.owner.name}"
            _denied_elsewhere(wanted, access, f"{by} at {level.path} denies it", proof)
    count = sum(len(level.programs or ()) for level in tree)
    programs = "1 program" if count == 1 else f"{count} programs"
    of = "1 level" if len(tree) == 1 else f"{len(tree)} levels"
    proof.said.append(
        f"{len(accesses)} accesses run through the {programs} of {of}: as the policy says"
        if unknown is None
        else f"the programs could not all be run: {unknown}"
    )


def _denied_elsewhere(wanted: Verification, access: Access, why: str, proof: Proof) -> None:
    said = f"the policy allows {access}, but {why}"
    if not wanted.narrower:
        raise StepFailed(said, hint="--narrower applies a policy although something else denies part of it")
    bits = [replace(access, mask=bit) for bit in (READ, WRITE) if access.mask & bit]
    if proof.denied.keys().isdisjoint((access, *bits)):  # reading and trying meet the same denials, and so does rw
        proof.denied[access] = said


def _by_trying(
    wanted: Verification,
    accesses: Sequence[Access],
    expected: Sequence[bool],
    proof: Proof,
    calls: Calls,
    scratch: str | None,
) -> None:
    asked = [(access.type, access.major, access.minor, access.mask) for access in accesses]
    v1_procs = None if wanted.v1 is None else f"{wanted.v1.directory}/cgroup.procs"
    try:
        if wanted.v2 is None:
            answers = probe_cgroup(asked, v1_procs=v1_procs, scratch=scratch)
        else:
            with calls.cgroup(wanted.v2.mount, wanted.v2.cgroup) as directory:
                if why := _cannot_hold_a_child(calls, directory):
                    raise Unknown("access from inside the cgroup", why)
                answers = probe_cgroup(asked, cgroup=directory, v1_procs=v1_procs, scratch=scratch)
    except Unknown as error:
        proof.said.append(f"no access was tried: {error.why}")
        return
    for access, allowed, answer in zip(accesses, expected, answers, strict=True):
        if answer is True and not allowed:
            raise StepFailed(f"a process in {_name(wanted)} can access {access}, which the policy denies")
        if answer is False and allowed:
            _denied_elsewhere(wanted, access, "a process inside is denied it", proof)
    tried = sum(answer is not None for answer in answers)
    proof.said.append(f"{tried} accesses tried from a child inside: as the policy says")


def _name(wanted: Verification) -> str:
    return next(place.cgroup for place in (wanted.v2, wanted.v1) if place is not None)


def _cannot_hold_a_child(calls: Calls, directory: int) -> Literal["the cgroup is frozen"] | None:
    try:
        return "the cgroup is frozen" if "frozen 1" in calls.read(directory, "cgroup.events") else None
    except FileNotFoundError:
        return None
