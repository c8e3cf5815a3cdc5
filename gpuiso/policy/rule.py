# SPDX-License-Identifier: Apache-2.0
"""A device rule, and the words and bits it is written in.

The kernel numbers device types and accesses in include/uapi/linux/bpf.h (BPF_DEVCG_*); people
write them as devices.allow does: ``c 195:0 rw``, ``b 8:* r``, ``a``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from gpuiso.policy.place import Place

__all__ = [
    "ALL_ACCESS",
    "MAX_MAJOR",
    "MAX_MINOR",
    "MKNOD",
    "READ",
    "WRITE",
    "DeviceType",
    "Rule",
    "RuleType",
    "letters",
    "mask",
]

DeviceType = Literal["b", "c"]
RuleType = Literal["a", "b", "c"]

MKNOD, READ, WRITE = 1, 2, 4
ALL_ACCESS = MKNOD | READ | WRITE
# A dev_t of the kernel has 12 bits of major and 20 of minor (include/linux/kdev_t.h).
MAX_MAJOR = (1 << 12) - 1
MAX_MINOR = (1 << 20) - 1

_BITS = {"r": READ, "w": WRITE, "m": MKNOD}


def mask(access: str) -> int:
    """The bits of access letters: ``mask("rw") == 6``. :raises ValueError: a letter is not r, w or m."""
    bits = 0
    for letter in access:
        if letter not in _BITS:
            raise ValueError(f"unknown access {letter!r}: r, w and m are known")
        bits |= _BITS[letter]
    return bits


def letters(bits: int) -> str:
    """Access bits as letters in the kernel's order: ``letters(6) == "rw"``; no bits are ``""``."""
    return "".join(letter for letter, bit in _BITS.items() if bits & bit)


@dataclass(frozen=True)
class Rule:
    """``allow`` or deny ``access`` to every device that ``type``, ``major`` and ``minor`` match.

    ``type`` "a" stands for both kinds, a number that is None for every number. Of several rules the
    later wins, each access bit on its own. ``place`` is where it was written; rules are equal without it.

    :raises ValueError: a field is out of range.
    """

    allow: bool
    type: RuleType
    major: int | None
    minor: int | None
    access: str
    place: Place | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.type not in ("a", "b", "c"):
            raise ValueError(f"unknown device type {self.type!r}: a, b and c are known")
        for name, value, top in (("major", self.major, MAX_MAJOR), ("minor", self.minor, MAX_MINOR)):
            if value is not None and not 0 <= value <= top:
                raise ValueError(f"{name} {value} is out of range: 0 to {top}, or *")
        if not self.access or letters(mask(self.access)) != self.access:
            raise ValueError(f"access {self.access!r} is not one or more of r, w, m, in that order")

    @property
    def mask(self) -> int:
        """The access letters as bits."""
        return mask(self.access)

    def matches(self, device: DeviceType, major: int, minor: int) -> bool:
        """Whether the rule speaks of this device, whatever the access."""
        return self.type in ("a", device) and self.major in (None, major) and self.minor in (None, minor)

    def __str__(self) -> str:
        numbers = ":".join("*" if number is None else str(number) for number in (self.major, self.minor))
        return f"{'allow' if self.allow else 'deny'} {self.type} {numbers} {self.access}"
