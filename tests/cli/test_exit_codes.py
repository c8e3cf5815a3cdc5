# SPDX-License-Identifier: Apache-2.0
"""Exit codes are a contract."""

from __future__ import annotations

import errno
import os
from pathlib import Path

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


@pytest.mark.parametrize(
    ("number", "code"),
    [(errno.ENOSPC, 7), (errno.EISDIR, 7), (errno.ELOOP, 7), (errno.EACCES, 3), (errno.EROFS, 3)],
)
def test_a_file_of_the_host_that_fails_is_one_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, number: int, code: int
) -> None:
    def fails(_: object) -> int:
        raise OSError(number, os.strerror(number), "/run/gpuiso/lock")

    monkeypatch.setattr("gpuiso.cli.main._run", fails)
    result = run(capsys, "recover")
    assert (result.code, result.err) == (code, f"gpuiso: /run/gpuiso/lock: {os.strerror(number)}\n")


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), OSError(errno.EBADF, "bad", "/x"), KeyError("x")])
def test_a_fault_of_ours_is_not_hidden(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fails(_: object) -> int:
        raise error

    monkeypatch.setattr("gpuiso.cli.main._run", fails)
    with pytest.raises(type(error)):
        main(["recover"])


def test_govern_without_nvml_says_that_it_cannot_hold(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuiso.cli.govern._mount", lambda: "/sys/fs/cgroup")
    monkeypatch.setattr("gpuiso.host.live.LiveHost.nvml", lambda _: None)
    result = run(capsys, "govern", "/a=50000/100000", "--seconds", "1")
    assert result.code == 5
    assert "gpu.max cannot be held" in result.err


@pytest.mark.parametrize("verb", ["check", "compile"])
def test_more_rules_than_a_program_can_hold(capsys: pytest.CaptureFixture[str], tmp_path: Path, verb: str) -> None:
    policy = tmp_path / "many.rules"
    policy.write_text("".join(f"allow c {n % 4096}:{n * 7} r\n" for n in range(40_000)))
    result = run(capsys, "rules", verb, str(policy))
    assert "are more than a device program can hold" in result.out + result.err
    assert result.code == {"check": 0, "compile": 5}[verb]
