# SPDX-License-Identifier: Apache-2.0
"""The v1 devices controller as security/device_cgroup.c has it, for one cgroup below one that allows everything."""

from __future__ import annotations

from gpuiso.policy.rule import mask

__all__ = ["V1Devices"]

_Entry = tuple[str, str, str]


class V1Devices:
    """Starts as a new cgroup does, allowing everything."""

    def __init__(self) -> None:
        self.default_allow = True
        self.entries: dict[_Entry, int] = {}

    def copy(self) -> V1Devices:
        other = V1Devices()
        other.default_allow, other.entries = self.default_allow, dict(self.entries)
        return other

    def write(self, file: str, text: str) -> None:
        kind, *rest = text.split(" ")
        allow = file == "devices.allow"
        if kind == "a":
            self.default_allow, self.entries = allow, {}
            return
        major, minor = rest[0].split(":")
        entry, bits = (kind, major, minor), mask(rest[1])
        if allow == self.default_allow:
            # An exception to the default is taken back, if there is one with just these numbers.
            if entry in self.entries:
                self.entries[entry] &= ~bits
                if not self.entries[entry]:
                    del self.entries[entry]
        else:
            self.entries[entry] = self.entries.get(entry, 0) | bits

    def allows(self, kind: str, major: int, minor: int, bits: int) -> bool:
        matching = [
            held
            for entry, held in self.entries.items()
            if entry[0] == kind and entry[1] in ("*", str(major)) and entry[2] in ("*", str(minor))
        ]
        if self.default_allow:
            return not any(bits & held for held in matching)
        return any(bits & held == bits for held in matching)
