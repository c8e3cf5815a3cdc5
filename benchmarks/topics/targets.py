# SPDX-License-Identifier: Apache-2.0
"""``gpuiso doctor --all`` on hosts that grow: recorded containers, and cgroups of this machine."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.crowd import crowd
from benchmarks.process import Runs, measure
from benchmarks.registry import NotMeasurable, Row, topic
from benchmarks.topics.map import write_host
from benchmarks.topics.startup import EXAMPLE

SMALL, LARGE = 250, 1000
BAR = 3.0  # seconds for the larger host
PEAK = 150  # MiB
MOST = 5


@topic("doctor-all", "gpuiso doctor --all: whole processes; containers with a process and a device program each")
def doctor_all(rounds: int) -> list[Row]:
    rounds = min(rounds, MOST)
    return [*_recorded(rounds), *_live(rounds)]


def _recorded(rounds: int) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="gpuiso-bench-") as scratch:
        commands = {}
        for size in (SMALL, LARGE):
            place = Path(scratch, str(size))
            write_host(place, size, alike=False)
            commands[size] = [sys.executable, "-m", "gpuiso", "doctor", "--all", "--json", "--from", str(place)]
            _complete(commands[size], size)
        runs = measure({str(size): argv for size, argv in commands.items()}, rounds)
    return _rows("record", {size: runs[str(size)] for size in commands}, "8 GPUs, a program each")


def _live(rounds: int) -> list[Row]:
    argv = [sys.executable, "-m", "benchmarks.examine_all", str(EXAMPLE)]
    runs = {}
    for size in (SMALL, LARGE):
        with crowd(size):
            _complete(argv, size)
            runs[size] = measure({"all": argv}, rounds)["all"]
    return _rows("this host", runs, "8 programs, the 4 GPUs of the example record")


def _rows(where: str, runs: dict[int, Runs], note: str) -> list[Row]:
    growth = runs[LARGE].median / runs[SMALL].median
    small, large = (f"{where}, {size} containers" for size in (SMALL, LARGE))
    return [
        Row(small, "s", runs[SMALL].seconds),
        Row(large, "s", runs[LARGE].seconds, peer=small, ratio=growth, bar=BAR, note=note),
        Row(
            f"{large}: growth", "s", runs[LARGE].seconds, peer=small, ratio=growth, bar=LARGE / SMALL, bar_on_ratio=True
        ),
        Row(f"{large}: peak", "MiB", (runs[LARGE].peak_mib,), bar=PEAK),
    ]


def _complete(argv: list[str], size: int) -> None:
    """Run once. Raises NotMeasurable unless a process of every container was examined."""
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if not done.stdout:
        raise NotMeasurable(f"{' '.join(argv[1:4])} ended with {done.returncode}: {done.stderr.strip()[-200:]}")
    examined = len(json.loads(done.stdout)["processes"])
    if examined < size:
        raise NotMeasurable(f"of {size} containers {examined} were examined")
