# SPDX-License-Identifier: Apache-2.0
"""Run a device program for one access and say what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from gpuiso.devfilter.insn import Insn, Malformed, unpack
from gpuiso.devfilter.machine import Join, Machine, Return, State, Stuck
from gpuiso.devfilter.values import HelperNames, Maps, Unknown
from gpuiso.policy.rule import MKNOD, DeviceType, letters

__all__ = ["DEVICE_TYPE_NUMBERS", "Access", "Verdict", "interpret"]

DEVICE_TYPE_NUMBERS: dict[DeviceType, int] = {"b": 1, "c": 2}
_M32 = (1 << 32) - 1
_MAX_STEPS = 200_000  # of one access; filters for a thousand devices take some thousands


@dataclass(frozen=True)
class Access:
    """What is asked of a filter. ``mask`` are policy.rule's access bits; 0 is ``access(path, F_OK)``."""

    type: DeviceType
    major: int
    minor: int
    mask: int

    @property
    def type_word(self) -> int:
        """``access_type`` of struct bpf_cgroup_dev_ctx: the access above, the device type below."""
        return self.mask << 16 | DEVICE_TYPE_NUMBERS[self.type]

    def as_asked(self) -> tuple[Access, ...]:
        """The questions the kernel really asks for it: mknod apart from reading and writing."""
        apart = self.mask & MKNOD, self.mask & ~MKNOD
        if all(apart):
            return tuple(replace(self, mask=mask) for mask in apart)
        return (self,)

    def __str__(self) -> str:
        return f"{self.type} {self.major}:{self.minor} {letters(self.mask) or 'F_OK'}"


@dataclass(frozen=True)
class Verdict:
    """What a program answers, and why: the instruction that ended it, or what could not be known."""

    value: Literal["allow", "deny", "unknown"]
    why: str


def interpret(
    program: bytes | Sequence[Insn],
    access: Access,
    *,
    maps: Maps | None = None,
    helpers: HelperNames | None = None,
    max_steps: int = _MAX_STEPS,
) -> Verdict:
    """The answer of ``program``, loaded or as a translated dump shows it, to ``access``.

    Where the program depends on something that is not known (a map that cannot be read, the time, a
    helper) both ways are followed; if they differ the verdict is unknown, with the reason.
    """
    try:
        insns = unpack(program) if isinstance(program, bytes) else program
    except Malformed as error:
        return Verdict("unknown", str(error))
    machine = Machine(
        insns, access.type_word, access.major, access.minor, maps=maps, helpers=helpers, steps_left=max_steps
    )
    waiting, endings, doubt = [State.start()], dict[bool, int](), ""
    while waiting and len(endings) < 2:
        event = machine.run(waiting.pop())
        if isinstance(event, Stuck):
            return Verdict("unknown", event.why)
        if isinstance(event, Return):
            if isinstance(event.value, int):
                endings.setdefault(bool(event.value & _M32), event.pc)
                continue
            return Verdict("unknown", _reason(event.value))
        state = event.state
        if isinstance(event, Join):
            waiting.append(state)
            continue
        doubt = doubt or _reason(event.left, event.right)
        waiting += [state.fork(event.taken), state.fork(event.otherwise)]
    if len(endings) == 2:
        return Verdict("unknown", doubt)
    ((allowed, pc),) = endings.items()
    return Verdict("allow" if allowed else "deny", f"returns {int(allowed)} at instruction {pc}")


def _reason(*values: object) -> str:
    for value in values:
        if isinstance(value, Unknown):
            return value.why
    return "it compares addresses"
