# SPDX-License-Identifier: Apache-2.0
"""gpu.max on a real GPU: the share of GPU time that workloads get, by their kernels' own times."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuiso.govern.cgroup import GovernedCgroup
from gpuiso.govern.governor import Governor
from gpuiso.gpu.model import Inventory
from gpuiso.host.nvml_usage import UsageReader
from gpuiso.policy.limits import parse_gpu_max
from tests.tiers import cgroup2_mount, requires

pytestmark = requires("gpu")

SECONDS = 20.0
Property = Callable[[str, object], None]


class Workload:
    """A process in a cgroup of its own; ``rows`` are its reports."""

    def __init__(self, name: str, gpu: str, arguments: Sequence[str]) -> None:
        mount = cgroup2_mount()
        assert mount is not None
        self.directory = mount / f"gpuiso-{name}-{os.getpid()}"
        self.directory.mkdir()
        self.rows: list[tuple[float, float, float]] = []
        program = [sys.executable, "-u", str(Path(__file__).with_name("matmul.py")), *arguments]
        self.process = subprocess.Popen(
            ["sh", "-c", f'echo 0 >{self.directory}/cgroup.procs && exec "$@"', "sh", *program],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": gpu},
            stdout=subprocess.PIPE,
            text=True,
        )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            now, spent, count = line.split()
            self.rows.append((float(now), float(spent), float(count)))

    def wait(self) -> None:
        end = time.monotonic() + 90
        while len(self.rows) < 20:
            assert self.process.poll() is None, "the workload ended"
            assert time.monotonic() < end, "the workload does not start"
            time.sleep(0.05)

    def between(self, start: float, end: float) -> tuple[float, float]:
        """The share of GPU time and the multiplications a second."""
        rows = [row for row in self.rows if start <= row[0] <= end]
        span = rows[-1][0] - rows[0][0]
        return (rows[-1][1] - rows[0][1]) / span, (rows[-1][2] - rows[0][2]) / span

    def governed(self, share: float, holds: str) -> GovernedCgroup:
        limit = parse_gpu_max(f"{round(share * 100_000)} 100000")
        return GovernedCgroup(str(self.directory.parent), f"/{self.directory.name}", limit, holds=holds)

    def close(self) -> None:
        (self.directory / "cgroup.freeze").write_text("0")
        self.process.kill()
        self.process.wait()
        self._thread.join()
        assert self.process.stdout is not None
        self.process.stdout.close()
        for _ in range(200):
            try:
                self.directory.rmdir()
                return
            except OSError:
                time.sleep(0.02)


@contextmanager
def workloads(*specs: tuple[str, str, Sequence[str]]) -> Iterator[list[Workload]]:
    started: list[Workload] = []
    try:
        for name, gpu, arguments in specs:
            started.append(Workload(name, gpu, arguments))
        for workload in started:
            workload.wait()
        yield started
    finally:
        for workload in started:
            workload.close()


def uuids(inventory: Inventory) -> list[str]:
    return [str(gpu.uuid) for gpu in inventory.of("nvidia")]


@pytest.fixture(scope="module")
def loop_and_burst(inventory: Inventory) -> Iterator[list[Workload]]:
    """A back-to-back loop on the first GPU and a bursty one on the last."""
    first, last = uuids(inventory)[0], uuids(inventory)[-1]
    if first == last:
        pytest.skip("needs two GPUs")
    with workloads(("loop", first, ["8192"]), ("burst", last, ["8192", "0.4", "0.2"])) as started:
        yield started


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5, 0.75, 0.9])
def test_a_share_is_held(
    share: float, loop_and_burst: list[Workload], tmp_path: Path, record_property: Property
) -> None:
    loop, burst = loop_and_burst
    # The burst rests a third of its time: it cannot use more than two thirds.
    burst_share = min(share, 0.55)
    cgroups = [loop.governed(share, str(tmp_path)), burst.governed(burst_share, str(tmp_path))]
    governor = Governor(cgroups, UsageReader())
    start = time.monotonic()
    governor.run(SECONDS + 2)
    end = time.monotonic()
    got, rate = loop.between(start + 2, end)
    got_burst, _ = burst.between(start + 2, end)
    measured = cgroups[0].used / (end - start)
    note = f"loop {got:.3f} of {share} ({rate:.0f}/s; by NVML {measured:.3f}), burst {got_burst:.3f} of {burst_share}"
    record_property("note", note)
    assert got == pytest.approx(share, abs=0.03)
    assert got_burst == pytest.approx(burst_share, abs=0.03)


def test_no_limit_costs_nothing(loop_and_burst: list[Workload], tmp_path: Path, record_property: Property) -> None:
    """Free, governed and free again: the clocks fall while the GPU warms."""
    loop, burst = loop_and_burst

    def rate(work: Callable[[], None]) -> float:
        start = time.monotonic()
        work()
        return loop.between(start + 0.2, time.monotonic())[1]

    def governed() -> None:
        Governor([loop.governed(1.0, str(tmp_path)), burst.governed(1.0, str(tmp_path))], UsageReader()).run(6)

    rate(lambda: time.sleep(3))
    before, held, after = rate(lambda: time.sleep(6)), rate(governed), rate(lambda: time.sleep(6))
    share = held / ((before + after) / 2)
    record_property("note", f"{share:.4f} of the free rate ({before:.0f}, {held:.0f}, {after:.0f} a second)")
    assert share > 0.98


def test_two_cgroups_on_one_gpu(inventory: Inventory, tmp_path: Path, record_property: Property) -> None:
    gpu = uuids(inventory)[0]
    with workloads(("a", gpu, ["8192"]), ("b", gpu, ["8192"])) as (one, other):
        cgroups = [one.governed(0.7, str(tmp_path)), other.governed(0.3, str(tmp_path))]
        governor = Governor(cgroups, UsageReader())
        try:
            turn(governor, 2)  # until the first samples come nothing is held
            before, start = governor.used(), time.monotonic()
            turn(governor, SECONDS)
            after, end = governor.used(), time.monotonic()
        finally:
            governor.close()
        used = [(after[path] - before[path]) / (end - start) for path in before]
        rates = [workload.between(start, end)[1] for workload in (one, other)]
    record_property("note", f"GPU time {used[0]:.3f} and {used[1]:.3f}; rates {rates[0]:.0f}/s and {rates[1]:.0f}/s")
    # Two processes take turns on a GPU at a price: there is less than one GPU to share.
    assert used[1] == pytest.approx(0.3, abs=0.03)
    assert 0.55 < used[0] < 0.73


def turn(governor: Governor, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        governor.tick()
