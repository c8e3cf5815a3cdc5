# SPDX-License-Identifier: Apache-2.0
"""``gpuiso rules check`` and ``gpuiso rules compile``."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from gpuiso.devfilter.interpret import Access, interpret
from gpuiso.devfilter.recover import recover
from gpuiso.policy.parse import parse_rules
from tests.cli.command import check_schema, run
from tests.support import REPOSITORY

Capture = pytest.CaptureFixture[str]
HOST = str(REPOSITORY / "examples/hosts/h200-x4")
POLICIES = sorted((REPOSITORY / "examples/policies").iterdir())

RULES = "deny a\nallow default-nodes\nallow gpu 2 rw\n"


@pytest.fixture
def rules(tmp_path: Path) -> str:
    path = tmp_path / "gpu.rules"
    path.write_text(RULES)
    return str(path)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda path: path.name)
def test_the_examples_are_right(capsys: Capture, policy: Path) -> None:
    result = run(capsys, "rules", "check", str(policy), "--from", HOST)
    assert (result.code, result.err) == (0, "")
    assert "warning" not in result.out
    assert f"{policy}: fine" in result.out


def test_fine(capsys: Capture, rules: str) -> None:
    result = run(capsys, "rules", "check", rules, "--from", HOST)
    assert result.code == 0
    lines = [line.split() for line in result.out.splitlines()]
    assert ["allow", "c", "195:2", "rw", "3", "allow", "gpu", "2", "rw"] in lines
    assert "systemd: can hold these rules" in result.out


def test_a_rule_has_one_line(capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it is, and whatever YAML lets it look like; rich's tables take seconds for what fits into a file."""
    monkeypatch.setattr("rich.table.Table", None)
    path = tmp_path / "gpu.yaml"
    glob = f"/dev/nvidia[0{'9' * 120}]"
    path.write_text(f'gpuiso: 1\ndevices:\n- allow {glob}\n- "allow\\tc 1:3\\n rwm"\n- allow default-nodes\n')
    result = run(capsys, "rules", "check", str(path), "--from", HOST)
    assert result.code == 0
    assert result.out.splitlines()[2:6] == [
        "rule               line  as written",
        f"allow c 195:0 rwm  3     allow {glob}",
        "allow c 1:3 rwm    4     allow c 1:3 rwm",
        "allow c 1:3 rwm    5     allow default-nodes",
    ]


def test_all_errors_at_once(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "gpu.rules"
    path.write_text("allow gpu 7\nallow nothing\nallow /dev/nvidia9\ndeny gpu 1\n")
    result = run(capsys, "rules", "check", str(path), "--from", HOST)
    assert result.code == 2
    heads = [line.split(": ")[1] for line in result.out.splitlines() if line.startswith("error: ")]
    assert heads == [f"{path}:1:7", f"{path}:2:7", f"{path}:3:7"]
    assert result.out.splitlines()[-1] == f"{path}: 3 errors"


def test_json(capsys: Capture, rules: str, tmp_path: Path) -> None:
    result = run(capsys, "rules", "check", rules, "--from", HOST, "--json")
    check_schema(result.json, "rules-check")
    assert result.json["errors"] == result.json["warnings"] == []
    assert result.json["default"] == "deny"
    assert result.json["rules"][-1] == {"rule": "allow c 238:1 rw", "line": 3, "text": "allow gpu 2 rw"}
    assert result.json["back_ends"] == {"cgroup v2": None, "cgroup v1": None, "systemd": None}
    policy = tmp_path / "gpu.yaml"
    policy.write_text(
        'gpuiso: 1\ndevices: [allow a, deny gpu 1]\nio.max: ["8:0 rbps=1", "8:1 rbps=1"]\ngpu.max: 5000\n'
    )
    result = run(capsys, "rules", "check", str(policy), "--from", HOST, "--json")
    check_schema(result.json, "rules-check")
    assert result.json["limits"] == {"gpu.max": "5000 100000", "io.max": ["8:0 rbps=1", "8:1 rbps=1"]}
    assert f"{policy}:2: deny gpu 1: denies a part" in result.json["back_ends"]["systemd"]
    policy.write_text("gpuiso: 1\ndevices: [allow gpu 9]\n")
    result = run(capsys, "rules", "check", str(policy), "--from", HOST, "--json")
    check_schema(result.json, "rules-check")
    assert result.code == 2
    (error,) = result.json["errors"]
    assert (error["line"], error["column"], error["message"]) == (2, 17, "there is no GPU 9 here")


def test_syntax_looks_nothing_up(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "gpu.rules"
    path.write_text("allow gpu 99\nallow /dev/not-there\n")
    assert run(capsys, "rules", "check", str(path), "--syntax").code == 0
    path.write_text("allow gpu x\n")
    assert run(capsys, "rules", "check", str(path), "--syntax").code == 2
    assert run(capsys, "rules", "check", str(path), "--syntax", "--from", HOST).code == 2


def test_standard_input(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"allow a\ndeny gpu 0\n")))
    result = run(capsys, "rules", "check", "-", "--from", HOST)
    assert result.code == 0
    assert result.out.startswith("-: fine")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"allow \xff", ":1:7: byte 0xff is not UTF-8"),
        (b"# \xc3\xa4\nallow \xc3\xa4\xff", ":2:8: byte 0xff is not UTF-8"),
        (b"x" * ((1 << 20) + 1), ": larger than 1 MiB"),
        (b"", ": neither rules nor a document"),
        (b"\xef\xbb\xbfallow b\x00", ":1:8: the character '\\x00' cannot stand in a policy"),
    ],
)
def test_files_that_are_no_text(capsys: Capture, tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "gpu.rules"
    path.write_bytes(content)
    result = run(capsys, "rules", "check", str(path), "--from", HOST)
    assert result.code == 2
    assert f"{path}{says}" in result.out + result.err


def test_no_such_file(capsys: Capture, tmp_path: Path) -> None:
    for path, code in ((tmp_path / "nothing", 4), (tmp_path, 2)):
        result = run(capsys, "rules", "check", str(path))
        assert result.code == code
        assert result.err.startswith(f"gpuiso: {path}: ")


def test_compile_to_a_program(capsys: Capture, rules: str) -> None:
    program = bytes.fromhex(run(capsys, "rules", "compile", rules, "--from", HOST, "--format", "hex").out)
    assert interpret(program, Access("c", 195, 2, 6)).value == "allow"
    assert interpret(program, Access("c", 195, 1, 6)).value == "deny"
    listing = run(capsys, "rules", "compile", rules, "--from", HOST).out.splitlines()
    assert len(listing) == len(program) // 8
    assert listing[0].endswith("; access_type")


def test_compile_to_writes_and_settings(capsys: Capture, rules: str) -> None:
    writes = run(capsys, "rules", "compile", rules, "--from", HOST, "--format", "devices.allow").out.splitlines()
    assert writes[0] == "echo a > devices.deny"
    assert "echo 'c 195:2 rw' > devices.allow" in writes
    settings = run(capsys, "rules", "compile", rules, "--from", HOST, "--format", "systemd").out.splitlines()
    assert settings[:2] == ["DevicePolicy=strict", "DeviceAllow="]
    assert "DeviceAllow=/dev/char/195:2 rw" in settings


def test_compile_to_json(capsys: Capture, rules: str, tmp_path: Path) -> None:
    found = run(capsys, "rules", "compile", rules, "--from", HOST, "--format", "json").json
    check_schema(found, "rules-compile")
    assert found["program"]["instructions"] * 16 == len(found["program"]["insns"])
    program = bytes.fromhex(found["program"]["insns"])
    again = parse_rules("\n".join(found["normal_form"]["rules"]))
    assert all(
        recover(program).verdict(Access("c", r.major or 0, r.minor or 0, r.mask)).value == "allow" for r in again
    )
    policy = tmp_path / "most.rules"
    policy.write_text("allow a\ndeny gpu 1\nallow b 8:* r\n")
    found = run(capsys, "rules", "compile", str(policy), "--from", HOST, "--format", "json").json
    check_schema(found, "rules-compile")
    assert found["cgroup_v1"] == [
        {"file": "devices.allow", "text": "a"},
        {"file": "devices.deny", "text": "c 195:1 rwm"},
    ]
    assert found["systemd"] is None
    assert "systemd has no deny" in found["not_supported"]["systemd"]


@pytest.mark.parametrize(
    ("text", "form", "code", "says"),
    [
        ("allow a\ndeny gpu 1", "systemd", 5, "2: deny gpu 1: denies a part"),
        ("allow c 195:* rw\ndeny gpu 1", "systemd", 5, "2: deny gpu 1: denies a part"),
        (
            "allow c 195:* rw\ndeny gpu 1\nallow b *:* r\ndeny b 8:0 r",
            "devices.allow",
            5,
            "cgroup v1 would accept that and change nothing",
        ),
        ("gpuiso: 1\npids.max: 5", "listing", 2, "says nothing about devices"),
        ("allow gpu 9", "listing", 2, "there is no GPU 9 here"),
        ("allow a", "elf", 2, "elf"),
    ],
)
def test_what_cannot_be_compiled(capsys: Capture, tmp_path: Path, text: str, form: str, code: int, says: str) -> None:
    path = tmp_path / "gpu.policy"
    path.write_text(text)
    result = run(capsys, "rules", "compile", str(path), "--from", HOST, "--format", form)
    assert result.code == code
    assert result.out == ""
    assert says in result.err
