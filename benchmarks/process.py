# SPDX-License-Identifier: Apache-2.0
"""Time and peak memory of whole processes."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["EMPTY_PYTHON", "Runs", "measure"]

LAUNCHER = Path(__file__).with_name("launcher.py")
EMPTY_PYTHON = (sys.executable, "-I", "-S", "-c", "pass")
"""The least that a Python program costs: the unit of start-up times that hold on any machine."""


@dataclass(frozen=True)
class Runs:
    """The runs of one command: wall-clock seconds and exit status of each, and the highest peak in MiB."""

    seconds: tuple[float, ...]
    peak_mib: float
    exits: frozenset[int]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def measure(commands: Mapping[str, Sequence[str]], rounds: int) -> dict[str, Runs]:
    """Run each command ``rounds`` times, in turn, after one round that warms caches and is not counted.

    The first word of a command is the path of a program. Output of the commands is thrown away.
    """
    lines = "\n".join("\0".join(argv) for argv in commands.values())
    launcher = [sys.executable, "-I", "-S", str(LAUNCHER), str(rounds + 1)]
    done = subprocess.run(launcher, input=lines, capture_output=True, text=True, check=True)
    rows = [tuple(int(word) for word in line.split()) for line in done.stdout.splitlines()]
    counted = rows[len(commands) :]
    result = {}
    for index, name in enumerate(commands):
        own = [row for row in counted if row[0] == index]
        result[name] = Runs(
            seconds=tuple(nanoseconds / 1e9 for _, nanoseconds, _, _ in own),
            peak_mib=max(kib for _, _, kib, _ in own) / 1024,
            exits=frozenset(status for _, _, _, status in own),
        )
    return result
