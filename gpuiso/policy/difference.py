# SPDX-License-Identifier: Apache-2.0
"""What changes when one list of rules takes the place of another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpuiso.policy.rule import MAX_MAJOR, MAX_MINOR, DeviceType, Rule, letters
from gpuiso.policy.table import DEVICE_TYPES, Table, combine, table

__all__ = ["Devices", "Difference", "difference"]

_Span = tuple[int, int]


@dataclass(frozen=True)
class Devices:
    """Devices, and accesses to them: ``c 195:0 rw``, ``b *:* r``, ``c 136-143:0-7 rw``."""

    type: DeviceType
    majors: _Span
    minors: _Span
    access: str

    def __str__(self) -> str:
        numbers = f"{_span(self.majors, MAX_MAJOR)}:{_span(self.minors, MAX_MINOR)}"
        return f"{self.type} {numbers} {self.access}"


@dataclass(frozen=True)
class Difference:
    """What becomes ``allowed`` and ``denied``; both are empty if the rules mean the same."""

    allowed: tuple[Devices, ...]
    denied: tuple[Devices, ...]

    def __bool__(self) -> bool:
        return bool(self.allowed or self.denied)

    def describe(self, names: Mapping[tuple[DeviceType, int, int], str] | None = None) -> list[str]:
        """A sentence a change; ``names`` gives what single devices are called."""
        lines = [f"becomes allowed: {_named(devices, names or {})}" for devices in self.allowed]
        return lines + [f"becomes denied: {_named(devices, names or {})}" for devices in self.denied]


def difference(old: Sequence[Rule], new: Sequence[Rule], *, old_default: bool, new_default: bool) -> Difference:
    """What rules ``new`` allow that ``old`` do not, and the other way round."""
    allowed: list[Devices] = []
    denied: list[Devices] = []
    for device in DEVICE_TYPES:
        before = table(old, device, default_allow=old_default)
        after = table(new, device, default_allow=new_default)
        allowed += _devices(device, combine(before, after, lambda was, will: will & ~was))
        denied += _devices(device, combine(before, after, lambda was, will: was & ~will))
    return Difference(tuple(allowed), tuple(denied))


def _devices(device: DeviceType, rows: Table) -> Iterator[Devices]:
    for low, high, cells in rows:
        for first, last, bits in cells:
            if bits:
                yield Devices(device, (low, high), (first, last), letters(bits))


def _span(span: _Span, top: int) -> str:
    low, high = span
    if (low, high) == (0, top):
        return "*"
    return str(low) if low == high else f"{low}-{high}"


def _named(devices: Devices, names: Mapping[tuple[DeviceType, int, int], str]) -> str:
    name = names.get((devices.type, devices.majors[0], devices.minors[0]))
    single = devices.majors[0] == devices.majors[1] and devices.minors[0] == devices.minors[1]
    return f"{name} ({devices})" if name is not None and single else str(devices)
