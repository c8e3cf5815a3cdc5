# SPDX-License-Identifier: Apache-2.0
"""The GPU nodes of a lab. No driver stands behind them: an open that the cgroup allows ends in ENXIO."""

from __future__ import annotations

import dataclasses
from pathlib import Path

NVIDIA_MAJOR = 195
CONTROL_MINOR = 255

# The driver takes a major of the kernel's dynamic range (char_dev.c: 234 to 254, then 511 down to 384) for uvm.
DYNAMIC_MAJORS: list[int] = [*range(511, 383, -1), *range(254, 233, -1)]


@dataclasses.dataclass(frozen=True)
class Node:
    """A character device node."""

    path: str
    major: int
    minor: int
    mode: int = 0o666


def unused_major() -> int:
    """A dynamic character major that no driver of this machine has registered."""
    text = Path("/proc/devices").read_text().split("Block devices:")[0]
    taken = {int(line.split()[0]) for line in text.splitlines()[1:] if line.strip()}
    return next(major for major in DYNAMIC_MAJORS if major not in taken)


def gpu_nodes(count: int = 2) -> list[Node]:
    """What an NVIDIA driver with ``count`` GPUs puts into /dev."""
    uvm = unused_major()
    return [
        *(Node(f"/dev/nvidia{index}", NVIDIA_MAJOR, index) for index in range(count)),
        Node("/dev/nvidiactl", NVIDIA_MAJOR, CONTROL_MINOR),
        Node("/dev/nvidia-uvm", uvm, 0),
        Node("/dev/nvidia-uvm-tools", uvm, 1),
    ]
