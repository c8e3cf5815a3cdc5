# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import check_schema, run
from tests.records import RecordMaker

Capture = pytest.CaptureFixture[str]
DENY_ALL = {"id": 9, "name": "", "tag": "ab", "attach_flags": 2, "insns": "b7000000000000009500000000000000"}


@pytest.fixture
def maker(tmp_path: Path) -> RecordMaker:
    made = RecordMaker(tmp_path / "record")
    made.add_process(7, descriptors=("/dev/nvidia0",))
    return made


def explain(capsys: Capture, maker: RecordMaker, *arguments: str) -> tuple[int, str]:
    result = run(capsys, "explain", "--from", str(maker.write()), *arguments)
    return result.code, result.out or result.err


def test_allowed(capsys: Capture, maker: RecordMaker) -> None:
    code, text = explain(capsys, maker, "--pid", "7", "/dev/nvidia1")
    assert code == 0
    assert text.startswith("pid 7 may open /dev/nvidia1 for rw")
    assert "has the node open" not in text


def test_denied_by_a_level_of_the_tree(capsys: Capture, maker: RecordMaker) -> None:
    maker.cgroups["/job"] = {"device_programs": [DENY_ALL]}
    code, text = explain(capsys, maker, "--pid", "7", "/dev/nvidia0")
    assert code == 1
    assert "pid 7 may not open /dev/nvidia0" in text
    assert "because of cgroup-v2 at /job" in text
    assert "It has the node open already" in text
    result = run(capsys, "explain", "--from", str(maker.directory), "--pid", "7", "/dev/nvidia0", "--json")
    check_schema(result.json, "explain")
    assert result.json["gates"][result.json["first_denial"]]["where"] == "/job"


def test_a_cgroup(capsys: Capture, maker: RecordMaker) -> None:
    maker.cgroups["/job"] = {"device_programs": [DENY_ALL]}
    maker.cgroups["/other"] = {"device_programs": []}
    assert explain(capsys, maker, "--cgroup", "/job", "/dev/nvidia0")[0] == 1
    assert explain(capsys, maker, "--cgroup", "/other", "/dev/nvidia0")[0] == 0
    assert explain(capsys, maker, "--cgroup", "/other", "/dev/nvidia9")[0] == 4
    assert explain(capsys, maker, "--cgroup", "//other//", "/dev/nvidia0")[1].startswith("cgroup /other (as root) may")
    result = run(capsys, "explain", "--from", str(maker.directory), "--cgroup", "/job", "/dev/nvidia0", "--json")
    check_schema(result.json, "explain")
    assert (result.json["cgroup"], result.json["path"], result.json["access"]) == ("/job", "/dev/nvidia0", "rw")


def test_unknown(capsys: Capture, maker: RecordMaker) -> None:
    maker.cgroups["/job"] = {"device_programs": None}
    code, text = explain(capsys, maker, "--pid", "7", "/dev/nvidia0")
    assert code == 5
    assert "cannot be known" in text
    assert "not permitted" in text


def test_what_was_tried_counts_for_more_than_what_was_read(capsys: Capture, maker: RecordMaker) -> None:
    directory = maker.write()
    (directory / "probes.json").write_text('{"7": {"/dev/nvidia0": {"rw": "EPERM"}}}')
    code, text = explain(capsys, maker, "--pid", "7", "/dev/nvidia0")
    assert code == 1
    assert "Contradiction: by what was read: allow; tried in its place: fails with EPERM" in text
    maker.cgroups["/job"] = {"device_programs": [DENY_ALL]}
    assert "Contradiction" not in explain(capsys, maker, "--pid", "7", "/dev/nvidia0")[1]
    code, text = explain(capsys, maker, "--pid", "7", "/dev/nvidia1")
    assert code == 0
    assert "Contradiction: by what was read: deny; tried in its place: rw is granted" in text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("/dev/nvidia0",), "give one of --pid N and --cgroup PATH"),
        (("--pid", "7", "--cgroup", "/job", "/dev/nvidia0"), "give one of"),
        (("--pid", "7", "nvidia0"), "not an absolute path"),
        (("--pid", "7", "/dev/nvidia0", "--access", "rx"), "'rx': only r, w and m"),
        (("--pid", "7", "/dev/nvidia0", "--access", ""), "only r, w and m"),
        (("--cgroup", "job", "/dev/nvidia0"), "does not start with /"),
        (("--cgroup", "/..", "/dev/nvidia0"), "'..' in it"),
        (("--cgroup", "/job/../..", "/dev/nvidia0"), "'..' in it"),
    ],
)
def test_wrong_usage(capsys: Capture, maker: RecordMaker, arguments: tuple[str, ...], says: str) -> None:
    code, text = explain(capsys, maker, *arguments)
    assert code == 2
    assert says in text


def test_no_such_process(capsys: Capture, maker: RecordMaker) -> None:
    assert explain(capsys, maker, "--pid", "8", "/dev/nvidia0")[0] == 4
