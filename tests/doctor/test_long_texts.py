# SPDX-License-Identifier: Apache-2.0
"""Values of megabytes, which anyone may put into an environment: read in passing, shown in part."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuiso.doctor.engine import examine
from gpuiso.doctor.finding import Evidence, Fix, Rule
from gpuiso.gpu.visibility.tokens import items, quoted
from tests.records import RecordMaker

RULE = Rule("GPU-TEST", "error", "title", "summary")


@pytest.mark.parametrize("value", ["0," * 1_000_000, "GPU-," * 200_000, "9" * 1_000_000, "0, " * 100_000])
@pytest.mark.parametrize("name", ["CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICE"])
def test_a_report_stays_short(name: str, value: str, tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    maker.add_process(42, {name: value})
    report = examine(maker.host(), pid=42)
    assert report.findings or name == "NVIDIA_VISIBLE_DEVICES"
    assert len(json.dumps([finding.as_json() for finding in report.findings])) < 30_000


def test_what_is_cut() -> None:
    finding = RULE.finding("a" * 5000, evidence=[Evidence("b", "c " * 5000)], fix=[Fix("d", "e" * 50_000)])
    assert finding.cause == "a" * 700 + "…"
    assert len(finding.evidence[0].says) == 2001
    assert finding.fix == (Fix("d (the command is too long to be shown)"),)


def test_what_is_not_cut() -> None:
    uuids = ",".join(["GPU-11111111-1111-1111-1111-111111111111"] * 16)
    evidence, fix = Evidence("environ", uuids), Fix("x", f"export A={uuids}")
    finding = RULE.finding(f"It is {uuids}.", evidence=[evidence], fix=[fix])
    assert finding.cause == f"It is {uuids}."
    assert finding.evidence == (evidence,)
    assert finding.fix == (fix,)


def test_items_and_quotes() -> None:
    assert items("0,1,,2") == ["0", "1", "", "2"]
    long = items("0," * 10_000)
    assert len(long) == 4096
    assert ",".join(long) == "0," * 10_000
    assert quoted("x" * 10_000) == f"'{'x' * 55}...'"
