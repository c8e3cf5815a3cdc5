# SPDX-License-Identifier: Apache-2.0
"""The benchmarks measure what they say."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from benchmarks.__main__ import as_json, table
from benchmarks.process import EMPTY_PYTHON, measure
from benchmarks.registry import Row, Topic, load
from tests.support import REPOSITORY

MIB = 1024 * 1024


def test_each_run_has_its_own_time_peak_and_exit() -> None:
    waits = (sys.executable, "-I", "-S", "-c", "import time; time.sleep(0.05)")
    grows = (sys.executable, "-I", "-S", "-c", f"b'x' * (64 * {MIB}); raise SystemExit(3)")
    runs = measure({"empty": EMPTY_PYTHON, "waits": waits, "grows": grows}, rounds=2)
    assert list(runs) == ["empty", "waits", "grows"]
    assert [len(run.seconds) for run in runs.values()] == [2, 2, 2]
    assert min(runs["waits"].seconds) >= 0.05
    assert runs["grows"].peak_mib >= 64 > runs["empty"].peak_mib
    assert [run.exits for run in runs.values()] == [{0}, {0}, {3}]


def test_peak_of_a_small_child_is_not_that_of_a_large_parent() -> None:
    ballast = bytearray(b"x") * (96 * MIB)
    assert measure({"empty": EMPTY_PYTHON}, rounds=1)["empty"].peak_mib < len(ballast) / MIB


def test_a_bar_is_on_the_median_or_on_the_ratio() -> None:
    row = Row("a", "s", (0.1, 0.3, 0.2), peer="b", ratio=2.0, bar=0.25)
    assert row.median == 0.2
    assert row.holds is True
    assert Row("a", "s", (0.3,), bar=0.25).holds is False
    assert Row("a", "s", (0.3,), ratio=2.1, bar=2.2, bar_on_ratio=True).holds is True
    assert Row("a", "s", (0.3,)).holds is None


def test_table_and_json_tell_the_same() -> None:
    row = Row("start", "s", (0.3, 0.2, 0.4), peer="empty", ratio=3.0, bar=0.25, note="cold")
    text = table(Topic("t", "about", lambda rounds: [row] * rounds), [row])
    assert "300.0 ms" in text
    assert "3.00 x" in text
    assert "OVER cold" in text
    assert "to empty in the same run" in text
    assert as_json(row) == {
        "name": "start",
        "unit": "s",
        "median": 0.3,
        "min": 0.2,
        "max": 0.4,
        "n": 3,
        "peer": "empty",
        "ratio": 3.0,
        "bar": 0.25,
        "bar_on": "median",
        "holds": False,
        "note": "cold",
    }


def bench(*options: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "benchmarks", *options]
    return subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, check=False)


def test_json_has_the_topic_asked_for() -> None:
    done = bench("--json", "--rounds", "1", "startup")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["gpuiso"] == "bench/1"
    assert list(report["topics"]) == ["startup"]
    assert "startup" in load()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [(("nonesuch",), "no such topic: nonesuch"), (("--rounds", "0"), "--rounds is at least 1")],
)
def test_wrong_usage_is_said(options: tuple[str, ...], complaint: str) -> None:
    done = bench(*options)
    assert done.returncode == 2
    assert complaint in done.stderr
