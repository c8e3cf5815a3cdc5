# SPDX-License-Identifier: Apache-2.0
"""Files that the command line names and that let it wait."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from tests.cli.command import run

POLICY = b"gpuiso: 1\ndevices:\n- allow c 1:3 rwm\n"
CONFIG = b"{}"


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return path


def writer(path: Path, *parts: bytes, pause: float) -> threading.Thread:
    """Waits before it opens the FIFO, and again before each further part."""

    def write() -> None:
        time.sleep(pause)
        with path.open("wb", buffering=0) as file:
            for number, part in enumerate(parts):
                time.sleep(pause if number else 0)
                file.write(part)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("parts", "pause"), [((POLICY,), 1.3), ((POLICY[:10], POLICY[10:]), 0.7)], ids=["to open", "for the rest"]
)
def test_what_is_waited_for_is_said_once(
    capsys: pytest.CaptureFixture[str], fifo: Path, parts: tuple[bytes, ...], pause: float
) -> None:
    thread = writer(fifo, *parts, pause=pause)
    result = run(capsys, "rules", "check", "--syntax", str(fifo))
    thread.join(10)
    assert (result.code, result.out.splitlines()[0]) == (0, f"{fifo}: fine")
    assert result.err == f"gpuiso: waiting for {fifo}: somebody is to write to it, and to close it\n"


def test_so_is_a_configuration(capsys: pytest.CaptureFixture[str], fifo: Path) -> None:
    thread = writer(fifo, CONFIG, pause=1.3)
    result = run(capsys, "hook", "inject", "--gpus", "0", str(fifo))
    thread.join(10)
    assert f"gpuiso: waiting for {fifo}: " in result.err


def test_nothing_is_said_of_who_is_quick(capsys: pytest.CaptureFixture[str], fifo: Path) -> None:
    thread = writer(fifo, POLICY[:5], POLICY[5:], pause=0.1)
    result = run(capsys, "rules", "check", "--syntax", str(fifo))
    thread.join(10)
    assert (result.code, result.err) == (0, "")


def test_an_empty_pipe_that_was_closed_ends(capsys: pytest.CaptureFixture[str]) -> None:
    """As with <(true) in a shell."""
    readable, writable = os.pipe()
    os.close(writable)
    result = run(capsys, "rules", "check", "--syntax", f"/dev/fd/{readable}")
    os.close(readable)
    assert "waiting" not in result.err


def test_a_directory_is_none(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    result = run(capsys, "rules", "check", "--syntax", str(tmp_path))
    assert (result.code, result.err) == (2, f"gpuiso: {tmp_path}: Is a directory\n")
