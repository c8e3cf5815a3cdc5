# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuiso.policy.cgroup_files import known_file, parse_file_value
from gpuiso.policy.limits import GpuMax, parse_bytes, parse_gpu_max


@pytest.mark.parametrize(
    ("text", "parsed", "share"),
    [
        ("50000 100000", GpuMax(50_000, 100_000), 0.5),
        ("25000", GpuMax(25_000, 100_000), 0.25),
        ("max", GpuMax(None, 100_000), 1.0),
        ("max 50000", GpuMax(None, 50_000), 1.0),
        ("1000000 1000000", GpuMax(1_000_000, 1_000_000), 1.0),
    ],
)
def test_gpu_max(text: str, parsed: GpuMax, share: float) -> None:
    assert parse_gpu_max(text) == parsed
    assert parsed.share == share


@given(st.integers(1_000, 1_000_000), st.none() | st.integers(1_000, 1_000_000))
def test_gpu_max_is_read_back(period: int, quota: int | None) -> None:
    parsed = GpuMax(None if quota is None else min(quota, period), period)
    assert parse_gpu_max(str(parsed)) == parsed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected QUOTA PERIOD in microseconds"),
        ("1 2 3", "expected QUOTA PERIOD in microseconds"),
        ("half", "the quota: expected a whole number, not 'half'"),
        ("0.5", "the quota: expected a whole number"),
        ("999 100000", "the quota: 999 is out of range: 1000 to"),
        ("5000 999", "the period: 999 is out of range: 1000 to 1000000"),
        ("5000 max", "the period: expected a whole number"),
        ("200000 100000", "the quota: 200000 is more than the period, 100000; no limit is written max"),
        ("٥٠٠٠", "the quota: expected a whole number"),
        ("-5000", "the quota: -5000 is out of range"),
    ],
)
def test_wrong_gpu_max(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_gpu_max(text)


def test_bytes() -> None:
    assert [parse_bytes(text) for text in ("0", "1", "4k", "4K", "1M", "2G", "1T", "1P", "7E", "max")] == [
        0,
        1,
        4096,
        4096,
        1 << 20,
        2 << 30,
        1 << 40,
        1 << 50,
        7 << 60,
        "max",
    ]
    for text in ("", "G", "1.5G", "1GB", "-1", "0x10", "1 G", "8E", "9" * 5000, "١"):
        with pytest.raises(ValueError, match=r"expected bytes|more than a kernel counts"):
            parse_bytes(text)


@pytest.mark.parametrize(
    ("name", "text", "lines"),
    [
        ("memory.max", "64G", ("68719476736",)),
        ("memory.swap.max", "0", ("0",)),
        ("pids.max", "max", ("max",)),
        ("cpu.max", "50000", ("50000 100000",)),
        ("cpu.max", "max 20000", ("max 20000",)),
        ("cpu.weight.nice", "-20", ("-20",)),
        ("cpu.uclamp.max", "50.25", ("50.25",)),
        ("cpuset.cpus", "0-3,8,10-20:2/4", ("0-3,8,10-20:2/4",)),
        ("cpuset.mems", "", ("",)),
        ("io.max", "8:0  rbps=1 \n\n8:16 wbps=max", ("8:0 rbps=1", "8:16 wbps=max")),
        ("io.weight", "default 200", ("default 200",)),
        ("io.weight", "8:0 default", ("8:0 default",)),
        ("io.latency", "8:0 target=5000", ("8:0 target=5000",)),
        ("dmem.max", "drm/0000:03:00.0/vram0 1G", ("drm/0000:03:00.0/vram0 1073741824",)),
        ("misc.max", "sev 3", ("sev 3",)),
        ("rdma.max", "mlx5_0 hca_handle=2 hca_object=max", ("mlx5_0 hca_handle=2 hca_object=max",)),
        ("hugetlb.1GB.rsvd.max", "1G", ("1073741824",)),
    ],
)
def test_values_of_files(name: str, text: str, lines: tuple[str, ...]) -> None:
    assert known_file(name)
    assert parse_file_value(name, text) == lines


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("memory.max", "", "a value is missing"),
        ("memory.max", "1G\n2G", "takes one line"),
        ("memory.oom.group", "yes", "expected 0 or 1, not 'yes'"),
        ("pids.max", "4194305", "4194305 is out of range: 0 to 4194304, or max"),
        ("cpu.weight", "0", "0 is out of range: 1 to 10000"),
        ("cpu.uclamp.min", "101", "expected a percentage"),
        ("cpuset.cpus", "all", "expected a list such as 0-3,8, not 'all'"),
        ("cpuset.cpus", "3-1", "the range 3-1 ends before it starts"),
        ("cpuset.cpus", "0-9:3/2", "the part before the slash"),
        ("cpuset.cpus", "0,,1", "expected a list"),
        ("cpuset.cpus.partition", "mine", "expected member, root or isolated, not 'mine'"),
        ("io.max", "8:0", "expected MAJOR:MINOR KEY=VALUE …, not '8:0'"),
        ("io.max", "sda rbps=1", "expected the MAJOR:MINOR of a block device, not 'sda'"),
        ("io.max", "8:0 bps=1", "expected rbps=, wbps=, riops=, wiops=, not 'bps=1'"),
        ("io.max", "8:0 rbps=1 rbps=2", "rbps is given twice"),
        ("io.max", "8:0 rbps=1M", "expected a whole number, not '1M', or max"),
        ("io.weight", "8:0 1 2", "expected a weight"),
        ("dmem.max", "1G", "expected a region and a value, not '1G'"),
    ],
)
def test_wrong_values_of_files(name: str, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_file_value(name, text)


@pytest.mark.parametrize("name", ["cgroup.procs", "memory.current", "hugetlb.2MB.current", "devices.allow", ""])
def test_what_is_no_setting(name: str) -> None:
    assert not known_file(name)
