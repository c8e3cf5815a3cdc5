# SPDX-License-Identifier: Apache-2.0
"""``gpuiso config`` as a command: what it prints, its exit codes, its JSON."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.cli.command import check_schema, run
from tests.runtimes.hosts import before, record_with

DAEMON = "/etc/docker/daemon.json"
TOOLKIT = "/etc/nvidia-container-runtime/config.toml"


@pytest.fixture
def record(tmp_path: Path) -> str:
    files = {DAEMON: before("docker.json"), TOOLKIT: before("toolkit.toml")}
    versions = {"dockerd": "Docker version 26.1.5"}
    return str(record_with(tmp_path / "record", files, versions, ("/usr/bin/nvidia-container-runtime",)))


def test_a_file_is_printed_as_it_is(record: str, capsys: pytest.CaptureFixture[str]) -> None:
    result = run(capsys, "config", "docker", "--from", record)
    assert (result.code, result.out, result.err) == (0, before("docker.json"), "")


def test_the_change_is_a_diff(record: str, capsys: pytest.CaptureFixture[str]) -> None:
    result = run(capsys, "config", "docker", "--preset", "cdi", "--diff", "--from", record)
    assert result.code == 0
    changed = [line for line in result.out.splitlines() if line[0] in "+-"]
    assert changed == [
        f"--- {DAEMON}",
        f"+++ {DAEMON}",
        '-    "containerd-snapshotter": false',
        '+    "containerd-snapshotter": false,',
        '+    "cdi": true',
    ]


def test_lines_are_explained(record: str, capsys: pytest.CaptureFixture[str]) -> None:
    result = run(capsys, "config", "nvidia-container-runtime", "--preset", "cdi", "--explain", "--from", record)
    assert result.code == 1  # a key that the toolkit does not know
    assert '+ 21: mode = "cdi" # of 2022\n      nvidia-container-runtime.mode: how devices are added' in result.out
    assert '(default "auto")' in result.out
    assert "site.note: no key that gpuiso knows; kept as it is" in result.out
    assert result.err == f"warning: {TOOLKIT}:42: site.note is no key of NVIDIA's container toolkit; it is kept\n"


def test_json(record: str, capsys: pytest.CaptureFixture[str]) -> None:
    result = run(capsys, "config", "docker", "--preset", "cdi", "--json", "--from", record)
    check_schema(result.json, "config")
    (file,) = result.json["files"]
    assert (file["file"], file["exists"], file["changed"], file["written"]) == (DAEMON, True, True, False)
    changed = [key for key in result.json["keys"] if key["changed"]]
    assert [(key["key"], key["value"], key["line"]) for key in changed] == [("features.cdi", True, 7)]


def test_keys(capsys: pytest.CaptureFixture[str]) -> None:
    result = run(capsys, "config", "nvidia-container-runtime", "--keys")
    assert "nvidia-container-cli.no-cgroups  (boolean, default false)\n    write no device rules" in result.out
    as_json = run(capsys, "config", "kubelet", "--keys", "--json")
    check_schema(as_json.json, "config-keys")


def test_write_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "config.toml"
    file.write_text(before("toolkit.toml").replace("legacy", "auto"))
    command = ("config", "nvidia-container-runtime", "--file", str(file), "--set", "nvidia-container-cli.user=a:b")
    first = run(capsys, *command, "--write")
    assert first.code == 0
    assert first.out.splitlines()[0].startswith(f"{file}: written; it was before: {file}.gpuiso-backup-")
    assert "nothing to restart: the file is read whenever a container starts" in first.out
    second = run(capsys, *command, "--write", "--json")
    assert second.code == 0
    check_schema(second.json, "config")
    assert not second.json["changed"]
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("docker", "--set", "no-such=1"), 2, "--set no-such: Docker has no such key that gpuiso knows"),
        (("docker", "--set", "features.cdi=yes"), 2, '--set features.cdi=yes: must be true or false, not "yes"'),
        (("docker", "--set", "features.cdi"), 2, "--set features.cdi: give a value, as features.cdi=true"),
        (
            ("docker", "--set", "features.cdi=true", "--set", "live-restore=true", "--set", "features.cdi=false"),
            2,
            "--set features.cdi=true and --set features.cdi=false contradict each other",
        ),
        (
            ("docker", "--set", "cdi-spec-dirs=/a", "--set", '"cdi-spec-dirs"=/b', "--write"),
            2,
            """--set cdi-spec-dirs=/a and --set "cdi-spec-dirs"=/b contradict each other""",
        ),
        (("kubelet", "--preset", "rootless"), 2, "the kubelet has no preset 'rootless'; there is cdi"),
        (("docker", "--restart"), 2, "--restart goes with --write"),
        (("docker", "--write", "--diff"), 2, "--write goes alone"),
        (("docker", "--write", "--from", "x"), 2, "--write is for this machine"),
        (("docker", "--diff", "--file", ""), 2, "--file '' is not the name of a file"),
        (("docker", "--diff", "--file", "there/"), 2, "--file 'there/' is not the name of a file"),
        (("docker", "--diff", "--file", "/dev/null"), 2, "/dev/null: is not a regular file"),
        (("lxc",), 2, "Invalid value for"),
        (("docker", "--from", "/nowhere/at/all"), 4, "/nowhere/at/all"),
    ],
)
def test_wrong_usage_is_one_sentence(
    arguments: tuple[str, ...], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run(capsys, "config", *arguments)
    assert result.code == code
    assert says in result.err.splitlines()[0]
    assert len(result.err.splitlines()) <= 2


def test_a_key_that_is_given_twice_the_same(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = ("--file", str(tmp_path / "daemon.json"))
    twice = run(
        capsys, "config", "docker", *file, "--set", "cdi-spec-dirs=/a,/b", "--set", 'cdi-spec-dirs=["/a", "/b"]'
    )
    assert (twice.code, twice.json) == (0, {"cdi-spec-dirs": ["/a", "/b"]})
    over = run(capsys, "config", "docker", *file, "--preset", "cdi", "--set", "features.cdi=false")
    assert over.json["features"] == {"cdi": False}


def test_a_broken_file_is_named_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "daemon.json"
    file.write_bytes(b'{\n  "a": 1,\n}')
    result = run(capsys, "config", "docker", "--preset", "cdi", "--write", "--file", str(file))
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"gpuiso: {file}:3:1: not JSON")
    file.write_bytes(b"{\n\xff}")
    result = run(capsys, "config", "docker", "--write", "--file", str(file))
    assert result.err == f"gpuiso: {file}:2: not UTF-8 text: byte 0xff\n"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("engine", ["docker", "containerd", "nvidia-container-runtime", "kubelet"])
def test_what_is_no_regular_file_is_told(engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "fifo")
    for file in (tmp_path / "directory", tmp_path / "fifo"):
        for mode in ("--diff", "--explain", "--write"):
            result = run(capsys, "config", engine, mode, "--file", str(file))
            assert (result.code, result.out) == (2, "")
            assert result.err == f"gpuiso: {file}: is not a regular file\n"


@pytest.mark.parametrize("engine", ["docker", "containerd"])
def test_a_file_that_may_not_be_read(
    engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config"
    file.touch()
    real = os.open

    def refused(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if path == str(file):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return real(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", refused)
    result = run(capsys, "config", engine, "--diff", "--file", str(file))
    assert (result.code, result.out) == (3, "")
    assert result.err == f"gpuiso: {file}: not permitted to read it\n"


def test_only_the_last_directory_is_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ("config", "docker", "--preset", "cdi", "--write", "--force", "--file")
    file = tmp_path / "a b/docker/daemon.json"
    result = run(capsys, *command, str(file))
    assert (result.code, result.out) == (4, "")
    assert result.err.splitlines() == [
        f"gpuiso: {file}: there is no directory {tmp_path}/a b",
        f"  mkdir -p '{tmp_path}/a b/docker'",
    ]
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "a b").mkdir()
    assert run(capsys, *command, str(file)).code == 0
    assert file.exists()
