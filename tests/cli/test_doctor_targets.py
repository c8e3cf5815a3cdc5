# SPDX-License-Identifier: Apache-2.0
"""``gpuiso doctor --container``, ``--unit`` and ``--all``."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from tests.cli.command import check_schema, run
from tests.records import RecordMaker

Capture = pytest.CaptureFixture[str]

CONTAINER = "c0ffee" + "0" * 58
WRONG = {"CUDA_VISIBLE_DEVICES": "GPU-33333333-3333-3333-3333-333333333333"}


@pytest.fixture
def host(tmp_path: Path) -> str:
    maker = RecordMaker(tmp_path / "host")
    containers = {
        CONTAINER: {"Name": "/train", "State": {"Running": True, "Pid": 7}},
        "decade" + "0" * 58: {"Name": "/old", "State": {"Running": False, "Pid": 0}},
    }
    maker.tools["docker.json"] = {"info": None, "containers": containers}
    maker.tools["systemd.json"] = {
        "train.service": {"Id": "train.service", "ControlGroup": "/system.slice/train.service"}
    }
    maker.add_process(7, WRONG, cgroup=f"/system.slice/docker-{CONTAINER}.scope")
    maker.add_process(8, WRONG, cgroup="/system.slice/train.service")
    return str(maker.write())


@pytest.mark.parametrize(
    ("arguments", "target"),
    [
        (("--container", "train"), {"pid": 7, "container": CONTAINER}),
        (("--container", "c0ffee"), {"pid": 7, "container": CONTAINER}),
        (("--unit", "train"), {"pid": 8, "unit": "train.service"}),
    ],
)
def test_one_target(capsys: Capture, host: str, arguments: tuple[str, ...], target: dict[str, object]) -> None:
    result = run(capsys, "doctor", "--from", host, *arguments, "--json")
    assert result.code == 1
    check_schema(result.json, "doctor")
    assert result.json["processes"] == [target["pid"]]
    (found,) = [finding["target"] for finding in result.json["findings"] if finding["rule"] == "GPU-UUID-STALE"]
    assert found.items() >= target.items()


def test_all(capsys: Capture, host: str) -> None:
    result = run(capsys, "doctor", "--from", host, "--all", "--json")
    assert result.json["processes"] == [7, 8]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--container", "old"), "docker container old is not running"),
        (("--container", "nosuch"), "no container 'nosuch'"),
        (("--unit", "nosuch"), "no unit nosuch.service"),
    ],
)
def test_what_is_not_there(capsys: Capture, host: str, arguments: tuple[str, ...], says: str) -> None:
    result = run(capsys, "doctor", "--from", host, *arguments)
    assert (result.code, result.out) == (4, "")
    assert says in result.err
    as_json = run(capsys, "doctor", "--from", host, *arguments, "--json")
    check_schema(as_json.json, "error")
    assert as_json.json["error"]["code"] == "not-found"


@pytest.mark.parametrize(
    "arguments",
    [
        ("--pid", "7", "--all"),
        ("--container", "train", "--unit", "train"),
        ("--pid", "7", "--container", "train"),
        ("--container", ""),
        ("--rules", "--all"),
    ],
)
def test_wrong_usage(capsys: Capture, host: str, arguments: tuple[str, ...]) -> None:
    result = run(capsys, "doctor", "--from", host, *arguments)
    assert result.code == 2
    assert len(result.err.strip().splitlines()) <= 2


def test_npd_of_a_container(capsys: Capture, host: str) -> None:
    result = run(capsys, "doctor", "--from", host, "--container", "train", "--npd")
    assert result.code == 1
    assert result.out.startswith("GPU-UUID-STALE: ")


def test_a_record_of_a_container_has_its_processes(capsys: Capture, host: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy.tar.gz"
    first = run(capsys, "doctor", "--from", host, "--container", "train", "--record", str(copy), "--json")
    again = run(capsys, "doctor", "--from", str(copy), "--container", "train", "--json")
    assert [each["rule"] for each in again.json["findings"]] == [each["rule"] for each in first.json["findings"]]
    with tarfile.open(copy) as archive:
        file = archive.extractfile("tools/docker.json")
        assert file is not None
        assert CONTAINER in json.load(file)["containers"]
