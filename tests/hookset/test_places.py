# SPDX-License-Identifier: Apache-2.0
"""What is not the hook's own is told from what is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.command import run


@pytest.mark.parametrize(
    "text",
    [
        'sys.path.insert(0, "a',
        "sys.path.insert(0, )",
        "sys.path.insert(0, 'a\\U00ffffff')",
        "sys.path.insert(0, 'a\\d')",
        "sys.path.insert(0, '/\\ud800')",
        "sys.path.insert(0, 'a\\x00b')",
        "sys.path.insert(0, '')",
        "sys.path.insert(0, '/tmp')",
        "sys.path.insert(0, __import__('os'))",
        "sys.path.insert(0, " + 10_000 * "(" + ")",
    ],
)
@pytest.mark.filterwarnings("error")
def test_any_content_can_be_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    file = tmp_path / "f"
    for whole in (text, f"#!/usr/bin/python3 -IS\n{text}\nfrom gpuiso.hook.main import main\n"):
        file.write_text(whole)
        options = ["--path", str(file), "--tables", f"{tmp_path}/none", "--policies", f"{tmp_path}/none"]
        shown = run(capsys, "hook", "show", *options)
        assert (shown.code, shown.err.splitlines()[0]) == (4, f"gpuiso: no hook at {file}")
        assert run(capsys, "hook", "show", *options, "--json").json["path"] is None


def test_a_fifo_is_no_hook(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "f")
    assert run(capsys, "hook", "show", "--path", f"{tmp_path}/f").code == 4
