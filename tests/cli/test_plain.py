# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest

from gpuiso.cli.render.plain import plain
from tests.cli.command import run
from tests.records import RecordMaker


def test_what_a_terminal_would_obey_is_shown() -> None:
    assert plain("a\x1b[2Jb\x07\x9b\u202e") == r"a\x1b[2Jb\x07\x9b\u202e"
    assert plain("ordinary\n\ttext – ├── é") == "ordinary\n\ttext – ├── é"


def test_a_hostile_environment_does_not_reach_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    maker = RecordMaker(tmp_path / "host")
    maker.add_process(7, {"CUDA_VISIBLE_DEVICES": "\x1b]0;owned\x07,0"}, descriptors=("/dev/nvidia0",))
    maker.files["/proc/7/comm"] = "\x1b[31mred\n"
    monkeypatch.setenv("FORCE_COLOR", "1")
    for arguments in (("doctor", "--pid", "7"), ("doctor",), ("visible", "--pid", "7")):
        result = run(capsys, *arguments, "--from", str(maker.write()))
        assert "\x1b]0" not in result.out
        assert "\x1b[31mred" not in result.out
        assert "\x07" not in result.out
    assert "\x1b" not in run(capsys, "visible", "--from", "\x1b[31m").err
