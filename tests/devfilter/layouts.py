# SPDX-License-Identifier: Apache-2.0
"""Device programs laid out as other makers lay them out, from the same list of rules.

Each function gives the instructions its maker would load for ``rules`` (first to last, the later
meant to win where the maker lets it). They are for tests: gpuiso itself never writes such programs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from gpuiso.devfilter import insn as op
from gpuiso.devfilter.insn import Insn
from gpuiso.policy.rule import ALL_ACCESS, Rule, RuleType, letters

__all__ = ["LAYOUTS", "crun", "libnvidia_container", "random_rules", "runc", "systemd"]

TYPES = {"b": 1, "c": 2}
MOV32, MOV64 = op.ALU | op.MOV, op.ALU64 | op.MOV
JNE_IMM, JNE_REG = op.JMP | op.JNE, op.JMP | op.JNE | op.REG
LDX_W, LDX_H = op.LDX | op.MEM, op.LDX | op.MEM | 0x08

PROLOGUE = (
    Insn(LDX_W, 2, 1, 0),
    Insn(op.ALU | op.AND, 2, imm=0xFFFF),
    Insn(LDX_W, 3, 1, 0),
    Insn(op.ALU | op.RSH, 3, imm=16),
    Insn(LDX_W, 4, 1, 4),
    Insn(LDX_W, 5, 1, 8),
)


def _tests(rule: Rule, scratch: int, *, access_first: bool = False) -> list[Insn]:
    """The comparisons of one rule; every jump is to be aimed at what follows the rule."""
    kind = [] if rule.type == "a" else [Insn(JNE_IMM, 2, imm=TYPES[rule.type])]
    access = [
        Insn(MOV32 | op.REG, scratch, 3),
        Insn(op.ALU | op.AND, scratch, imm=rule.mask),
        Insn(JNE_REG, scratch, 3),
    ]
    if rule.mask == ALL_ACCESS:
        access = []
    numbers = [
        Insn(JNE_IMM, register, imm=value)
        for register, value in ((4, rule.major), (5, rule.minor))
        if value is not None
    ]
    return (access + kind if access_first else kind + access) + numbers


def _block(tests: Sequence[Insn], end: Sequence[Insn]) -> list[Insn]:
    whole = [*tests, *end]
    return [
        insn._replace(off=len(whole) - index - 1) if insn.code in (JNE_IMM, JNE_REG) else insn
        for index, insn in enumerate(whole)
    ]


def runc(rules: Sequence[Rule]) -> list[Insn]:
    """runc: exceptions to a default, the opposite of which every block returns."""
    default_allow = bool(rules) and rules[0].allow and rules[0].type == "a"
    out = list(PROLOGUE)
    for rule in rules:
        if rule.type != "a" and rule.allow != default_allow:
            out += _block(_tests(rule, 1), (Insn(MOV32, 0, imm=int(rule.allow)), Insn(op.JMP | op.EXIT)))
    return [*out, Insn(MOV32, 0, imm=int(default_allow)), Insn(op.JMP | op.EXIT)]


def crun(rules: Sequence[Rule]) -> list[Insn]:
    """crun: every rule, last first; a rule for everything ends the list."""
    out = list(PROLOGUE)
    for rule in reversed(rules):
        tests = _tests(rule, 1)
        out += _block(tests, (Insn(MOV64, 0, imm=int(rule.allow)), Insn(op.JMP | op.EXIT)))
        if not tests:
            return out
    return [*out, Insn(MOV64, 0, imm=0), Insn(op.JMP | op.EXIT)]


def systemd(rules: Sequence[Rule]) -> list[Insn]:
    """systemd: an allow-list, each entry of which jumps to one common end."""
    allowed = [rule for rule in rules if rule.allow and rule.type != "a"]
    if not allowed:
        return [Insn(MOV64, 0, imm=0), Insn(op.JMP | op.EXIT)]
    out = list(PROLOGUE)
    for rule in allowed:
        out += _block(_tests(rule, 1, access_first=True), (Insn(op.JMP | op.JA, off=0x7FFF),))
    end = len(out) + 2
    out = [
        insn._replace(off=end - index - 1) if insn.code == op.JMP | op.JA else insn for index, insn in enumerate(out)
    ]
    return [*out, Insn(MOV64, 0, imm=0), Insn(op.JMP | op.JA, off=1), Insn(MOV64, 0, imm=1), Insn(op.JMP | op.EXIT)]


def libnvidia_container(rules: Sequence[Rule]) -> list[Insn]:
    """libnvidia-container: blocks for the GPU's nodes before the program that was there (here runc's).

    Its access test uses the register of the device type, which later blocks then compare.
    """
    split = len(rules) // 2
    out = [Insn(LDX_H, 2, 1, 0), *PROLOGUE[2:]]
    for rule in reversed(rules[split:]):
        if rule.type != "a":
            out += _block(_tests(rule, 2), (Insn(MOV32, 0, imm=int(rule.allow)), Insn(op.JMP | op.EXIT)))
    return [*out, *runc(rules[:split])]


LAYOUTS: dict[str, Callable[[Sequence[Rule]], list[Insn]]] = {
    "runc": runc,
    "crun": crun,
    "systemd": systemd,
    "libnvidia-container": libnvidia_container,
}

MAJORS = (1, 5, 195, 238)
MINORS = (0, 1, 3, 255)


def random_rules(source: random.Random, size: int) -> list[Rule]:
    """A list of rules that meet each other often: few numbers, many wildcards, all accesses."""
    kinds: list[RuleType] = ["c", "c", "c", "b"]
    rules = [Rule(source.random() < 0.4, "a", None, None, "rwm")] if source.random() < 0.7 else []
    for _ in range(size):
        rules.append(
            Rule(
                source.random() < 0.6,
                source.choice(kinds) if source.random() < 0.97 else "a",
                source.choice(MAJORS) if source.random() < 0.85 else None,
                source.choice(MINORS) if source.random() < 0.75 else None,
                letters(source.randint(1, ALL_ACCESS)),
            )
        )
    return rules
