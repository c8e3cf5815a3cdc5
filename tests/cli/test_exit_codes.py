# SPDX-License-Identifier: Apache-2.0
"""Exit codes are a contract."""

from __future__ import annotations

import pytest

from gpuiso import errors
from gpuiso.cli.main import main
from tests.cli.command import check_schema, run


def test_the_table() -> None:
    table = {
        name: (getattr(errors, name).code, getattr(errors, name).exit_code)
        for name in errors.__all__
        if name != "GpuisoError"
    }
    assert table == {
        "UsageError": ("usage", 2),
        "BadInput": ("bad-input", 2),
        "NotPermitted": ("not-permitted", 3),
        "NotFound": ("not-found", 4),
        "NotSupported": ("not-supported", 5),
        "Unknown": ("unknown", 5),
        "TimedOut": ("timed-out", 6),
        "FailedAndUndone": ("failed-and-undone", 7),
        "NotUndone": ("not-undone", 8),
    }


def test_where_a_bad_input_is() -> None:
    error = errors.BadInput("no such rule", file="policy.yaml", line=3, column=7)
    assert error.message == "policy.yaml:3:7: no such rule"


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--version").out.startswith("gpuiso ")
    shown = run(capsys, "--help")
    assert shown.code == 0
    for verb in ("doctor", "visible", "cdi"):
        assert verb in shown.out
        assert "Examples:" in run(capsys, verb, "--help").out or verb == "cdi"
    assert main(["doctor", "-h"]) == 0


def test_no_arguments_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    result = run(capsys)
    assert "Usage: gpuiso" in result.out + result.err


def test_an_error_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    result = run(capsys, "visible", "--pid", "4194305", "--json")
    check_schema(result.json, "error")
    assert result.code == 4
    assert result.err == ""


def test_visible_has_its_schema(capsys: pytest.CaptureFixture[str]) -> None:
    result = run(capsys, "visible", "--env", "CUDA_VISIBLE_DEVICES=0,0", "--json")
    check_schema(result.json, "visible")
