# SPDX-License-Identifier: Apache-2.0
"""``gpuiso hook seccomp``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuiso.oci.seccomp import fragment
from tests.cli.command import run


def test_a_fragment_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "hook", "seccomp", "--profile", "utility").json == {"syscalls": fragment("utility")}


def test_names_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    lines = run(capsys, "hook", "seccomp", "--list").out.splitlines()
    assert "0xc000462a  NV_ESC_RM_CONTROL" in lines
    assert "0x30000001  UVM_INITIALIZE" in lines


def test_a_profile_is_merged_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    default, output = tmp_path / "default.json", tmp_path / "out.json"
    default.write_text(
        '{"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{"names": ["ioctl"], "action": "SCMP_ACT_ALLOW"}]}'
    )
    result = run(capsys, "hook", "seccomp", "--merge", str(default), "--output", str(output))
    assert (result.code, result.out) == (0, f"{output}: written\n")
    assert json.loads(output.read_text()) == {"defaultAction": "SCMP_ACT_ERRNO", "syscalls": fragment("compute")}


def test_the_profile_of_a_bundle_is_merged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.json"
    inner = {"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{"names": ["read"], "action": "SCMP_ACT_ALLOW"}]}
    config.write_text(json.dumps({"ociVersion": "1.0.2", "linux": {"seccomp": inner}, "hostname": "h"}))
    merged = run(capsys, "hook", "seccomp", "--merge", str(config)).json
    assert merged["hostname"] == "h"
    assert merged["linux"]["seccomp"]["syscalls"] == [*inner["syscalls"], *fragment("compute")]


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        (None, 4, "No such file or directory"),
        (b"\xff", 2, "profile.json:1:1: byte 0xff is not UTF-8"),
        (b"{", 2, "not JSON"),
        (b'{"ociVersion": "1.0.2"}', 2, "linux.seccomp is missing"),
        (b'{"defaultAction": "SCMP_ACT_ALLOW"}', 2, "cannot be restricted to a list"),
    ],
)
def test_what_cannot_be_merged(
    text: bytes | None, code: int, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "profile.json"
    if text is not None:
        file.write_bytes(text)
    result = run(capsys, "hook", "seccomp", "--merge", str(file))
    assert (result.code, result.out) == (code, "")
    assert result.err.startswith(f"gpuiso: {file}:")
    assert says in result.err
