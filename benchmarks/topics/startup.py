# SPDX-License-Identifier: Apache-2.0
"""What a person waits for, and the memory it takes: the command line as whole processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.process import EMPTY_PYTHON, measure
from benchmarks.registry import NotMeasurable, Row, topic

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLE = REPOSITORY / "examples" / "hosts" / "h200-x4"
PEER = "python -I -S -c pass"

# Seconds and MiB that each command may take.
START = 0.15
DOCTOR = 0.4
DOCTOR_PEAK = 90


@topic("startup", "whole processes of the command line: time and peak memory")
def startup(rounds: int) -> list[Row]:
    program = Path(sys.executable).with_name("gpuiso")
    if not program.exists():
        raise NotMeasurable(f"no {program}: gpuiso is not installed in this environment")
    commands = {
        PEER: EMPTY_PYTHON,
        "gpuiso --version": (str(program), "--version"),
        "gpuiso --help": (str(program), "--help"),
        "gpuiso doctor": (str(program), "doctor"),
        "gpuiso doctor --from h200-x4": (str(program), "doctor", "--from", str(EXAMPLE)),
    }
    for name, argv in commands.items():
        if name != PEER:
            answer(name, argv)
    bars = {name: DOCTOR if "doctor" in name else START for name in commands if name != PEER}
    runs = measure(commands, rounds)
    times = [
        Row(
            name,
            "s",
            run.seconds,
            peer=None if name == PEER else PEER,
            ratio=None if name == PEER else run.median / runs[PEER].median,
            bar=bars.get(name),
        )
        for name, run in runs.items()
    ]
    peaks = [
        Row(f"{name}: peak", "MiB", (run.peak_mib,), bar=DOCTOR_PEAK if "doctor" in name else None)
        for name, run in runs.items()
    ]
    return times + peaks


def answer(name: str, argv: Sequence[str]) -> None:
    """Run a command once. Raises NotMeasurable unless it does its work: nobody waits for a failure."""
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    # The doctor ends with 1 when it finds something; a program that crashed does so too, but prints nothing.
    if done.returncode not in (0, 1) or not done.stdout.strip():
        said = done.stderr.strip().splitlines() or ["nothing printed"]
        raise NotMeasurable(f"{name} ended with {done.returncode}: {said[-1]}")
