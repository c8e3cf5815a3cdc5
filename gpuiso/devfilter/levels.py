# SPDX-License-Identifier: Apache-2.0
"""Which level of a cgroup tree denies an access, and by which rule.

The kernel runs the programs of a cgroup and of all its ancestors; every one must allow
(kernel/bpf/cgroup.c, __cgroup_bpf_check_dev_permission). A level whose programs were attached without
BPF_F_ALLOW_MULTI is not run for cgroups below it that have a program (compute_effective_progs there).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from gpuiso.devfilter.insn import CALL, JMP, LD_IMM64, Malformed, unpack
from gpuiso.devfilter.interpret import Access, Verdict, interpret
from gpuiso.devfilter.owner import Owner, owner
from gpuiso.devfilter.recover import recover
from gpuiso.devfilter.values import HelperNames, Maps
from gpuiso.host.protocol import DeviceProgram
from gpuiso.kernel.bpf_attach import BPF_F_ALLOW_MULTI

__all__ = ["Level", "LevelVerdict", "ProgramVerdict", "TreeVerdict", "judge"]

Answer = Literal["allow", "deny", "unknown"]


@dataclass(frozen=True)
class Level:
    """One cgroup. ``programs`` in the order they run; None: not permitted to ask."""

    path: str
    programs: Sequence[DeviceProgram] | None


@dataclass(frozen=True)
class ProgramVerdict:
    """What one program answers. ``rule`` is the line of its normal form that decides, if there is one."""

    program: DeviceProgram
    owner: Owner
    value: Answer
    rule: str | None
    why: str


@dataclass(frozen=True)
class LevelVerdict:
    """What one cgroup answers: deny if a program denies, else unknown if one is unknown.

    ``overridden`` is the path of the level below whose programs run instead of this one's, which then lets all
    through, whatever its programs would answer.
    """

    path: str
    value: Answer
    programs: tuple[ProgramVerdict, ...]
    why: str
    overridden: str | None = None


@dataclass(frozen=True)
class TreeVerdict:
    """What the whole tree answers, level by level from the top."""

    access: Access
    value: Answer
    levels: tuple[LevelVerdict, ...]

    @property
    def first_denial(self) -> LevelVerdict | None:
        """The topmost level that denies."""
        return next((level for level in self.levels if level.value == "deny"), None)


def judge(
    levels: Iterable[Level],
    access: Access,
    *,
    maps: Maps | None = None,
    helpers: HelperNames | None = None,
    rules: bool = True,
) -> TreeVerdict:
    """What a task in the last of ``levels`` meets when it makes ``access``.

    ``levels`` go from the root of the tree down. A denial anywhere decides, whatever is unknown
    elsewhere. ``rules=False`` leaves out the deciding rules, which cost more than the answers.
    """
    upwards: list[LevelVerdict] = []
    below: Level | None = None  # the nearest level below whose programs run, or may run
    for level in reversed(tuple(levels)):
        verdict = _level(level, access, maps, helpers, rules)
        if below is not None and level.programs and not level.programs[0].attach_flags & BPF_F_ALLOW_MULTI:
            verdict = _beneath(verdict, below)
        upwards.append(verdict)
        if level.programs or (level.programs is None and (below is None or not below.programs)):
            below = level
    judged = tuple(reversed(upwards))
    return TreeVerdict(access, _all_of(level.value for level in judged), judged)


def _beneath(verdict: LevelVerdict, below: Level) -> LevelVerdict:
    """A level that gives way to programs below it: to those of ``below``, where it is known to have any."""
    if below.programs:
        return replace(
            verdict, value="allow", why=f"not run: {below.path} has a program and may override", overridden=below.path
        )
    if verdict.value == "allow":
        return verdict
    return replace(verdict, value="unknown", why=f"not run if {below.path} has a program, which is not known")


def _all_of(values: Iterable[Answer]) -> Answer:
    seen = set(values)
    if "deny" in seen:
        return "deny"
    return "unknown" if "unknown" in seen else "allow"


def _level(level: Level, access: Access, maps: Maps | None, helpers: HelperNames | None, rules: bool) -> LevelVerdict:
    if level.programs is None:
        return LevelVerdict(level.path, "unknown", (), "not permitted to ask which programs are attached")
    if not level.programs:
        return LevelVerdict(level.path, "allow", (), "no device program is attached")
    programs = tuple(_program(program, access, maps, helpers, rules) for program in level.programs)
    value = _all_of(program.value for program in programs)
    first = next(program for program in programs if program.value == value)
    return LevelVerdict(level.path, value, programs, first.why)


def _program(
    program: DeviceProgram, access: Access, maps: Maps | None, helpers: HelperNames | None, rules: bool
) -> ProgramVerdict:
    insns = program.insns
    if insns is None:
        nobody = Owner("foreign", "its instructions may not be read")
        return ProgramVerdict(program, nobody, "unknown", None, "not permitted to read the program's instructions")
    if _stands_alone(insns):
        value, rule, why = _decided(insns, access, rules)
    else:
        value, rule, why = _decide(insns, access, maps, helpers, rules)
    return ProgramVerdict(program, owner(insns, name=program.name), value, rule, rule or why)


@lru_cache(maxsize=1024)
def _stands_alone(program: bytes) -> bool:
    """Whether a program neither calls anything nor has an address of a map: then only the access decides."""
    try:
        insns = unpack(program)
    except Malformed:
        return True
    return not any(each.code == JMP | CALL or (each.code == LD_IMM64 and each.src) for each in insns)


@lru_cache(maxsize=4096)
def _decided(program: bytes, access: Access, rules: bool) -> tuple[Answer, str | None, str]:
    """:func:`_decide`, remembered: the containers of a host have few different programs, and each its own copy."""
    return _decide(program, access, None, None, rules)


def _decide(
    program: bytes, access: Access, maps: Maps | None, helpers: HelperNames | None, rules: bool
) -> tuple[Answer, str | None, str]:
    verdict = _worst(interpret(program, asked, maps=maps, helpers=helpers) for asked in access.as_asked())
    rule = None
    if rules and verdict.value != "unknown":
        recovered = recover(program, maps=maps, helpers=helpers).verdict(access)
        rule = recovered.why if recovered.value == verdict.value else None
    return verdict.value, rule, verdict.why


def _worst(verdicts: Iterable[Verdict]) -> Verdict:
    return min(verdicts, key=lambda verdict: ("deny", "unknown", "allow").index(verdict.value))
