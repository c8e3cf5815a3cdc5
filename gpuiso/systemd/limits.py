# SPDX-License-Identifier: Apache-2.0
"""Files of cgroup v2 as properties of a unit (systemd.resource-control(5))."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuiso.errors import NotSupported

__all__ = ["INFINITY", "limit_properties", "limit_settings"]

INFINITY = (1 << 64) - 1

_BYTES = {
    "memory.min": "MemoryMin",
    "memory.low": "MemoryLow",
    "memory.high": "MemoryHigh",
    "memory.max": "MemoryMax",
    "memory.swap.max": "MemorySwapMax",
    "pids.max": "TasksMax",
    "cpu.weight": "CPUWeight",
}


def limit_properties(files: Mapping[str, Sequence[str]]) -> list[tuple[str, int]]:
    """What to set on the bus. :raises NotSupported: systemd has no property for a file."""
    found: list[tuple[str, int]] = []
    for name, lines in files.items():
        if name in _BYTES:
            found.append((_BYTES[name], INFINITY if lines[0] == "max" else int(lines[0])))
        elif name == "cpu.max":
            quota, period = lines[0].split()
            per_second = INFINITY if quota == "max" else int(quota) * 1_000_000 // int(period)
            found.append(("CPUQuotaPerSecUSec", per_second))
        else:
            raise NotSupported(
                f"systemd has no property for {name}, and what is systemd's is not changed behind its back",
                hint="a unit with Delegate=yes can have a cgroup of its own below it, where gpuiso can write it",
            )
    return found


def limit_settings(files: Mapping[str, Sequence[str]]) -> list[str]:
    """The same as lines of a unit file."""
    lines = []
    for name, value in limit_properties(files):
        if name == "CPUQuotaPerSecUSec":
            lines.append("CPUQuota=" if value == INFINITY else f"CPUQuota={value / 10_000:g}%")
        else:
            lines.append(f"{name}={'infinity' if value == INFINITY else value}")
    return lines
