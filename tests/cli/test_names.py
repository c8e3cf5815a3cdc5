# SPDX-License-Identifier: Apache-2.0
"""Names of files, of nodes, of variables and of the program itself, as the command line takes and shows them."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from gpuiso.cli.own_name import own_name
from gpuiso.errors import FailedAndUndone, GpuisoError, UsageError
from gpuiso.host.record import write_record
from tests.cli.command import run
from tests.records import RecordMaker
from tests.support import REPOSITORY

Capture = pytest.CaptureFixture[str]
HOST = str(REPOSITORY / "examples/hosts/h200-x4")
VERBS = ("config", "doctor", "explain", "govern", "leases", "map", "reclaim", "recover", "restore", "run", "visible")
CDI_VERBS = ("list", "validate", "inject", "generate", "refresh")
RULES_VERBS = ("apply", "check", "compile", "remove", "show", "unit")


@pytest.mark.parametrize("name", ["a\nb", "a\n\nb\tc", "\x1b[2Ja\r\n"])
def test_a_name_cannot_feign_a_line(capsys: Capture, tmp_path: Path, name: str) -> None:
    for arguments in (
        ("doctor", "--from", name),
        ("doctor", f"--from={name}"),
        ("doctor", "--from", HOST, "--record", f"/nothing/{name}"),
        ("rules", "check", name),
        ("cdi", "inject", name, "vendor.com/gpu=0"),
        ("cdi", "validate", name),
    ):
        result = run(capsys, *arguments)
        assert result.code in (2, 4)
        (first, *hints) = result.err.splitlines()
        assert first.startswith("gpuiso: ")
        assert all(line.startswith("  ") for line in hints)
        assert not {"\x1b", "\r", "\t"} & set(result.err)
    maker = RecordMaker(tmp_path / name)
    maker.add_process(7, descriptors=("/dev/nvidia0",))
    maker.files["/proc/7/comm"] = "tr\nain\n"
    shown = run(capsys, "doctor", "--from", str(maker.write()))
    assert shown.out.splitlines()[0].startswith("healthy: 2 GPUs on")
    assert not any(line.startswith("ain") for line in shown.out.splitlines())
    assert "\x1b" not in shown.out


MANY = "1" * 5000


@pytest.mark.parametrize("kind", ["record", "oci", "seccomp", "engine"])
def test_numbers_that_python_does_not_read(capsys: Capture, tmp_path: Path, kind: str) -> None:
    file = tmp_path / "record.json"
    arguments = {
        "record": ("doctor", "--from", str(tmp_path)),
        "oci": ("cdi", "inject", str(file), "vendor.com/gpu=0"),
        "seccomp": ("hook", "seccomp", "--profile", "compute", "--merge", str(file)),
        "engine": ("config", "docker", "--file", str(file)),
    }[kind]
    file.write_text(f'{{"format": "gpuiso-host/1", "process": {{"user": {{"uid": {MANY}}}}}}}')
    result = run(capsys, *arguments)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"gpuiso: {file}: ")
    assert "digits" in result.err
    assert "sys." not in result.err


def test_half_a_surrogate_pair_stays_in_a_config(capsys: Capture, tmp_path: Path) -> None:
    config = {"ociVersion": "1.1.0", "process": {"user": {"uid": 0, "gid": 0}, "cwd": "/", "args": ["\ud800é"]}}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    (tmp_path / "spec.yaml").write_text(
        "cdiVersion: 0.6.0\nkind: vendor.com/gpu\ndevices:\n- name: d0\n  containerEdits: {env: [A=1]}\n"
    )
    arguments = ("cdi", "inject", "--spec-dir", str(tmp_path), str(file), "vendor.com/gpu=d0")
    printed = run(capsys, *arguments)
    assert (printed.code, printed.err) == (0, "")
    assert printed.json["process"]["args"] == config["process"]["args"]  # type: ignore[index]
    assert run(capsys, *arguments, "--write").code == 0
    assert json.loads(file.read_text()) == printed.json


def test_a_name_in_a_directory_cannot_feign_a_line(capsys: Capture, tmp_path: Path) -> None:
    specs, policies, tables = (tmp_path / name for name in ("cdi", "policy.d", "hook"))
    for directory in (specs, policies):
        directory.mkdir()
    (specs / "a\ngpuiso: all is well.yaml").write_text("[")
    (policies / "b\ngpuiso: all is well.rules").write_text("allow x\n")
    validated = run(capsys, "cdi", "validate", str(specs))
    assert (validated.code, validated.err) == (2, "")
    assert validated.out.startswith(f"{specs}/a\\ngpuiso: all is well.yaml: refused\n")
    listed = run(capsys, "cdi", "list", "--spec-dir", str(specs))
    assert (listed.code, len(listed.err.splitlines())) == (1, 1)
    refresh = ("hook", "refresh", "--policies", str(policies), "--tables", str(tables), "--cdi-dir", str(specs))
    refreshed = run(capsys, *refresh)
    assert (refreshed.code, len(refreshed.err.splitlines())) == (2, 1)
    assert f"{policies}/b\\ngpuiso: all is well.rules: " in refreshed.err

    (policies / "p.rules").write_text("allow c 1:3 rwm\n")
    (specs / "a\ngpuiso: all is well.yaml").write_text(
        "cdiVersion: 0.3.0\nkind: gpuiso.dev/policy\ndevices:\n- {name: p, containerEdits: {env: [A=1]}}\n"
    )
    refused = run(capsys, *refresh)
    assert (refused.code, len(refused.err.splitlines())) == (2, 2)  # the second is what to do


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("--deny", ""), 2, "--deny '' names no node"),
        (("--deny", "/dev/"), 2, "--deny '/dev/' names no node"),
        (("--deny", "nvidia0,nvidia1"), 2, "--deny 'nvidia0,nvidia1': one node each"),
        (("--deny", "nvidia9"), 0, "Note: --deny nvidia9: no GPU of this host has that node"),
        (("--env", "cuda_visible_devices=0"), 0, "Note: --env cuda_visible_devices: nobody reads that name"),
        (("--env", "CUDA_VISIBLE_DEVICE=0"), 0, "Note: --env CUDA_VISIBLE_DEVICE: nobody reads that name"),
    ],
)
def test_what_selects_nothing_is_told(capsys: Capture, arguments: tuple[str, ...], code: int, says: str) -> None:
    result = run(capsys, "visible", "--from", HOST, *arguments)
    assert result.code == code
    assert says in result.out + result.err


@pytest.mark.parametrize("name", ["host.tar.gz", "host"])
def test_of_two_records_to_one_place_one_is_refused(tmp_path: Path, name: str) -> None:
    hosts = [RecordMaker(tmp_path / str(number)).host() for number in range(2)]
    target = tmp_path / name
    meet = threading.Barrier(2)
    said: list[GpuisoError] = []

    def progress(what: str) -> None:
        if what == "writing":
            meet.wait()  # both have looked at the target before either writes it

    def record(number: int) -> None:
        try:
            write_record(hosts[number], str(target), progress=progress)
        except GpuisoError as error:
            said.append(error)

    threads = [threading.Thread(target=record, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (error,) = said
    assert isinstance(error, UsageError)
    assert error.message == f"{target} exists: a record is never written over anything"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["0", "1", name])


def test_another_failure_is_no_existing_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("gpuiso.host.record._write_archive", full)
    with pytest.raises(FailedAndUndone, match="No space left on device"):
        write_record(RecordMaker(tmp_path / "0").host(), str(tmp_path / "x.tar.gz"))
    assert [path.name for path in tmp_path.iterdir()] == ["0"]


def test_the_program_s_own_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / ".venv/bin/gpuiso"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nothing")
    for called, name in (
        (".venv/bin/gpuiso", ".venv/bin/gpuiso"),
        (str(program), ".venv/bin/gpuiso"),
        ("/usr/lib/python3/pytest", "gpuiso"),
        ("", "gpuiso"),
    ):
        monkeypatch.setattr("sys.argv", [called])
        assert own_name() == name
    monkeypatch.setenv("PATH", str(program.parent))
    monkeypatch.setattr("sys.argv", [str(program)])
    assert own_name() == "gpuiso"
    monkeypatch.setattr("sys.argv", ["/usr/lib/gpuiso/__main__.py"])
    monkeypatch.setattr("sys.executable", "/usr/bin/python3")
    assert own_name() == "python3 -m gpuiso"


@pytest.mark.parametrize(
    "verb",
    [
        *((verb,) for verb in VERBS),
        *(("cdi", verb) for verb in CDI_VERBS),
        *(("rules", verb) for verb in RULES_VERBS),
        ("ledger", "verify"),
    ],
    ids=" ".join,
)
def test_every_verb_lists_its_exit_codes(capsys: Capture, verb: tuple[str, ...]) -> None:
    assert "Exit codes: " in run(capsys, *verb, "--help").out
