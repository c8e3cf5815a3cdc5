# SPDX-License-Identifier: Apache-2.0
"""What a unit allows so far, as rules.

A unit's DeviceAllow is not always what holds: a container runtime that puts its own program in the place of systemd's
may allow more than it told systemd (runc 1.1.3 to 1.1.6 do, for nodes without a link in /dev/char). As long as no
program of systemd's is attached, the list is words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpuiso.apply.target import Target
from gpuiso.devfilter.insn import Malformed
from gpuiso.devfilter.normalform import Line
from gpuiso.devfilter.owner import owner
from gpuiso.devfilter.recover import recover
from gpuiso.host.device_programs import query_device_programs
from gpuiso.host.protocol import DeviceProgram, Host
from gpuiso.policy.document import parse_policy
from gpuiso.policy.resolve import resolve
from gpuiso.policy.rule import Rule

__all__ = ["in_effect", "is_systemds"]

_WIDEST = 64  # numbers that a line may span to be written out


def in_effect(host: Host, target: Target, shown: Mapping[str, Any]) -> tuple[Rule, ...]:
    """An allow-list as rules; empty if the unit has none, or one that cannot be told."""
    programs: Sequence[DeviceProgram] = ()
    if target.v2 is not None:
        programs = query_device_programs(target.v2.directory, target.v2.cgroup) or ()
    if programs and not any(is_systemds(program) for program in programs):
        return _of_program(programs[0]) if len(programs) == 1 else ()
    if shown["DevicePolicy"] != "strict" or not shown["DeviceAllow"]:
        return ()
    # A node that is gone is no part of the list, as for systemd.
    text = "\n".join(f"allow -{device} {access}" for device, access in shown["DeviceAllow"])
    return resolve(parse_policy(text), host).rules


def is_systemds(program: DeviceProgram) -> bool:
    """Whether a program is one that systemd attached."""
    return program.insns is not None and owner(program.insns, name=program.name).name == "systemd"


def _of_program(program: DeviceProgram) -> tuple[Rule, ...]:
    try:
        recovered = recover(program.insns or b"")
    except Malformed:
        return ()
    if recovered.default_allow or recovered.reasons:
        return ()
    return tuple(rule for line in recovered.lines[1:] for rule in _rules(line))


def _rules(line: Line) -> Iterator[Rule]:
    for major in _numbers(line.major):
        for minor in _numbers(line.minor):
            yield Rule(line.allow, line.type, major, minor, line.access)


def _numbers(span: tuple[int, int] | None) -> Sequence[int | None]:
    if span is None:
        return (None,)
    low, high = span
    return range(low, high + 1) if high - low < _WIDEST else ()
