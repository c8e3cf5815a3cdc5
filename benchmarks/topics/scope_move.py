# SPDX-License-Identifier: Apache-2.0
"""Moving a running process into a transient scope, in process and by ``systemd-run --scope``: in a lab."""

from __future__ import annotations

import statistics

from benchmarks.registry import NotMeasurable, Row, topic

PEER = "systemd-run --scope"
CALL = "in process: the call"
MOVES = 100
OF_PEER = 0.25
"""The call may take this part of what systemd-run takes."""
SPREAD = 10.0
"""The slowest in a hundred may take so many times the median."""


@topic("scope_move", "a running process into a new scope of systemd's, with its device rules")
def scope_move(rounds: int) -> list[Row]:
    from tests import tiers
    from tests.lab.host import Lab

    why = tiers.reason("lab")
    if why is not None:
        raise NotMeasurable(f"no lab: {why}")
    with Lab.boot() as lab:
        argv = ["python3", "/opt/gpuiso/benchmarks/scope_moves.py", str(max(rounds, MOVES))]
        printed = lab.run(argv, cgroup="/init.scope", timeout=600).stdout
    seconds: dict[str, list[float]] = {}
    for line in printed.splitlines():
        name, spent = line.split("\t")
        seconds.setdefault(name, []).append(int(spent) / 1e9)
    return [row for name, samples in seconds.items() for row in _rows(name, samples, statistics.median(seconds[PEER]))]


def _rows(name: str, samples: list[float], peer: float) -> list[Row]:
    median, slowest = statistics.median(samples), statistics.quantiles(samples, n=100)[98]
    if name == PEER:
        return [Row(name, "s", tuple(samples), note=f"p99 {slowest * 1000:.1f} ms")]
    bar = OF_PEER if name == CALL else None
    return [
        Row(name, "s", tuple(samples), PEER, median / peer, bar, bar_on_ratio=True),
        Row(f"{name}, p99", "s", (slowest,), "its own median", slowest / median, SPREAD, bar_on_ratio=True),
    ]
