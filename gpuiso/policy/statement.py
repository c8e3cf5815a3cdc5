# SPDX-License-Identifier: Apache-2.0
"""A line of a policy as it was written: whom it speaks of is not looked up yet.

A :class:`Statement` prints as a line that :mod:`gpuiso.policy.parse` reads back.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gpuiso.policy.place import Place
from gpuiso.policy.rule import ALL_ACCESS, DeviceType, RuleType, letters

__all__ = ["DeviceClass", "Glob", "GpuName", "MigName", "NodeSet", "Numbers", "Path", "Statement", "Subject"]

_CLASS_WORDS: dict[DeviceType, str] = {"c": "char", "b": "block"}


@dataclass(frozen=True)
class Numbers:
    """``c 195:0``, ``b 8:*``; ``a`` alone stands for everything."""

    type: RuleType
    major: int | None = None
    minor: int | None = None

    def __str__(self) -> str:
        if self.type == "a":
            return "a"
        return f"{self.type} {':'.join('*' if number is None else str(number) for number in (self.major, self.minor))}"


@dataclass(frozen=True)
class Path:
    """A device node: ``/dev/nvidia0``."""

    path: str

    def __str__(self) -> str:
        return self.path


@dataclass(frozen=True)
class Glob:
    """The device nodes that there are: ``/dev/nvidia*``. A wildcard does not stand for a slash."""

    pattern: str

    def __str__(self) -> str:
        return self.pattern


@dataclass(frozen=True)
class DeviceClass:
    """All devices of a driver, by its name in /proc/devices, as DeviceAllow= of systemd writes it: ``char-pts``."""

    type: DeviceType
    pattern: str

    def __str__(self) -> str:
        return f"{_CLASS_WORDS[self.type]}-{self.pattern}"


@dataclass(frozen=True)
class GpuName:
    """``gpu 0``, ``gpu amd:0``, ``gpu GPU-98b0``, ``gpu 0000:06:00.0``, ``gpu all``."""

    name: str

    def __str__(self) -> str:
        return f"gpu {self.name}"


@dataclass(frozen=True)
class MigName:
    """``mig MIG-98b0…``, or ``mig MIG-GPU-98b0…/1/0`` as drivers before R470 called it."""

    name: str

    def __str__(self) -> str:
        return f"mig {self.name}"


@dataclass(frozen=True)
class NodeSet:
    """A set of nodes that has a name: ``default-nodes``."""

    name: str

    def __str__(self) -> str:
        return self.name


Subject = Numbers | Path | Glob | DeviceClass | GpuName | MigName | NodeSet


@dataclass(frozen=True)
class Statement:
    """``allow`` or deny ``access`` to the devices of ``subject``; ``optional`` if there may be none of them."""

    allow: bool
    subject: Subject
    access: str = letters(ALL_ACCESS)
    optional: bool = False
    place: Place = field(default=Place(), compare=False, repr=False)

    def __str__(self) -> str:
        action = "allow" if self.allow else "deny"
        access = "" if self.subject == Numbers("a") else f" {self.access}"
        return f"{action} {'-' if self.optional else ''}{self.subject}{access}"
