# SPDX-License-Identifier: Apache-2.0
"""Whether a control file shows what was written, and what is written back to it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuiso.apply.calls import Calls
from gpuiso.apply.steps.limit import WriteLimit, same_limit

PAGE = os.sysconf("SC_PAGESIZE")


@pytest.mark.parametrize(
    ("name", "lines", "shown", "same"),
    [
        ("memory.max", ["max"], "max\n", True),
        ("memory.max", [str(10 * PAGE + 7)], f"{10 * PAGE}\n", True),
        ("memory.max", [str(10 * PAGE)], f"{9 * PAGE}\n", False),
        ("hugetlb.2MB.max", [str(3 << 20)], f"{2 << 20}\n", True),
        ("pids.max", ["100"], "100\n", True),
        ("pids.max", ["101"], "100\n", False),
        ("cpu.max", ["50000 100000"], "50000 100000\n", True),
        ("cpu.max", ["50000"], "50000 100000\n", True),
        ("cpu.max", ["50000 100000"], "max 100000\n", False),
        ("cpu.uclamp.max", ["50"], "50.00\n", True),
        ("io.max", ["8:0 rbps=1000"], "8:0 rbps=1000 wbps=max riops=max wiops=max\n", True),
        ("io.max", ["8:0 rbps=max"], "", True),
        ("io.max", ["8:0 rbps=1000"], "8:16 rbps=1000\n", False),
        ("dmem.max", [f"nvidia/0000:01:00.0/vidmem {3 * PAGE + 1}"], f"nvidia/0000:01:00.0/vidmem {3 * PAGE}\n", True),
        ("misc.max", ["res_a 1"], "res_a 2\n", False),
    ],
)
def test_what_the_kernel_shows(name: str, lines: list[str], shown: str, same: bool) -> None:
    assert same_limit(name, lines, shown) is same


def test_lines_are_put_back_one_by_one(tmp_path: Path) -> None:
    """A plain file holds the last write alone, so each line's own write can be seen."""
    (tmp_path / "job").mkdir()
    file = tmp_path / "job" / "io.max"
    written: list[str] = []

    class Watched(Calls):
        def write(self, directory: int, name: str, text: str) -> None:
            written.append(text)

    file.write_text("8:0 rbps=1 wbps=max riops=max wiops=max\n")
    step = WriteLimit(str(tmp_path), "/job", "io.max", ("8:0 rbps=5", "8:16 wbps=7"))
    before = step.record(Watched())
    file.write_text("8:0 rbps=5 wbps=max riops=max wiops=max\n8:16 rbps=max wbps=7 riops=max wiops=max\n")
    step.undo(Watched(), before)
    assert written == ["8:0 rbps=1 wbps=max riops=max wiops=max", "8:16 wbps=max"]
