# SPDX-License-Identifier: Apache-2.0
"""Standard output that is full, closed, without a reader or of a small encoding; and signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.cli.command import run, start
from tests.records import UUIDS, RecordMaker
from tests.support import REPOSITORY

HOST = "examples/hosts/h200-x4"
VERBS = {
    "version": "--version",
    "help": "--help",
    "nothing": "",
    "doctor": f"doctor --from {HOST}",
    "doctor-json": f"doctor --from {HOST} --json",
    "npd": f"doctor --from {HOST} --npd",
    "rules": "doctor --rules",
    "error-json": f"doctor --from {HOST} --pid 9999999 --json",
    "map": f"map --from {HOST}",
    "visible": f"visible --from {HOST}",
    "explain": f"explain --from {HOST} --cgroup / /dev/nvidia0",
    "cdi-generate": f"cdi generate --from {HOST} --hooks none",
    "cdi-list": "cdi list --spec-dir cdi-specs",
    "check": f"rules check examples/policies/one-gpu.yaml --from {HOST}",
}


def shell(command: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """A line of shell in which ``gpuiso`` is the program, its output and errors as one process sees them."""
    program = f"'{sys.executable}' -m gpuiso"
    return subprocess.run(
        ["/bin/sh", "-c", command.replace("gpuiso ", f"{program} ", 1)],
        cwd=REPOSITORY,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(("to", "why"), [(">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")])
def test_output_that_cannot_be_written_is_a_failure_and_no_finding(verb: str, to: str, why: str) -> None:
    done = shell(f"gpuiso {VERBS[verb]} {to}")
    assert (done.returncode, done.stdout) == (74, "")
    assert done.stderr.splitlines()[-1] == f"gpuiso: standard output cannot be written: {why}"
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.parametrize("verb", VERBS)
def test_a_reader_that_is_gone(verb: str) -> None:
    readable, writable = os.pipe()
    os.close(readable)
    done = subprocess.run(
        [sys.executable, "-m", "gpuiso", *VERBS[verb].split()],
        cwd=REPOSITORY,
        stdout=writable,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    os.close(writable)
    assert (done.returncode, done.stderr) == (141, b"")


def test_no_error_text_gets_to_standard_output() -> None:
    for to in ("2>&-", "2>/dev/full"):
        done = shell(f"gpuiso doctor --from /nothing/there {to}")
        assert (done.returncode, done.stdout, done.stderr) == (4, "", "")


def test_a_standard_input_that_is_closed() -> None:
    done = shell("gpuiso rules check - <&-")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("gpuiso: -: ")


@pytest.mark.parametrize("closed", [">&- 2>&-", "<&- >&- 2>&-", ">/dev/full 2>/dev/full"])
def test_a_record_is_written_although_nothing_can_be_said(tmp_path: Path, closed: str) -> None:
    record = tmp_path / "host.tar.gz"
    assert shell(f"gpuiso doctor --from {HOST} --record {record} {closed}").returncode == 74
    again = shell(f"gpuiso doctor --from {record} --json")
    assert json.loads(again.stdout)["verdict"] == "healthy"


@pytest.mark.parametrize("env", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}])
@pytest.mark.parametrize("verb", VERBS)
def test_an_encoding_without_our_signs(verb: str, env: Mapping[str, str]) -> None:
    usual = start(*VERBS[verb].split())
    done = start(*VERBS[verb].split(), env={**env, "PYTHONUTF8": "0"})
    assert done.code == usual.code
    assert done.out.isascii()
    assert "Traceback" not in done.err
    assert len(done.out.splitlines()) == len(usual.out.splitlines())


def test_files_are_utf8_whatever_the_encoding(tmp_path: Path) -> None:
    config = {"ociVersion": "1.1.0", "process": {"user": {"uid": 0, "gid": 0}, "cwd": "/é", "args": ["é"]}}
    (tmp_path / "config.json").write_text(json.dumps(config, ensure_ascii=False))
    (tmp_path / "spec.yaml").write_text(
        "cdiVersion: 0.6.0\nkind: vendor.com/gpu\ndevices:\n- name: d0\n  containerEdits: {env: [A=é]}\n"
    )
    inject = ["inject", str(tmp_path / "config.json"), "--spec-dir", str(tmp_path), "vendor.com/gpu=d0"]
    done = subprocess.run(
        [sys.executable, "-m", "gpuiso", "cdi", *inject],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    made = json.loads(done.stdout.decode())
    assert made["process"]["args"] == ["é"]
    assert "A=é" in made["process"]["env"]


@pytest.mark.parametrize(
    ("columns", "width"), [("0", 120), ("00", 120), ("-5", 120), ("²", 120), ("x", 120), ("1", 40), ("9" * 30, 500)]
)
def test_columns_that_make_no_sense(columns: str, width: int) -> None:
    done = start("doctor", "--from", HOST, env={"COLUMNS": columns})
    assert (done.code, done.err) == (0, "")
    assert "GPU 3" in done.out
    assert max(map(len, done.out.splitlines())) <= width


def test_no_line_ends_with_blanks(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path / "broken")
    maker.add_node("/dev/nvidia-uvm", 510, 0)
    maker.add_process(7, {"CUDA_VISIBLE_DEVICES": UUIDS[0]})
    record = str(maker.write())
    for command in (*VERBS.values(), f"doctor --from {record}", f"map --from {record}", f"visible --from {record}"):
        done = start(*command.split())
        assert [line for line in done.out.splitlines() if line != line.rstrip()] == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("name", ["host.tar.gz", "host"])
def test_a_signal_leaves_nothing_of_a_record_behind(tmp_path: Path, number: signal.Signals, name: str) -> None:
    # It stops where the file beside the target is written, and says so.
    program = (
        "import sys, time\n"
        "from gpuiso.cli.main import main\n"
        "from gpuiso.host import record\n"
        "def stop(layout, place):\n"
        "    print('writing', file=sys.stderr, flush=True)\n"
        "    time.sleep(60)\n"
        "record._write_archive = record._write_directory = stop\n"
        "sys.exit(main())\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, "doctor", "--from", HOST, "--record", str(tmp_path / name)],
        cwd=REPOSITORY,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert process.stderr.readline() == "writing\n"
    assert len(list(tmp_path.iterdir())) == 1
    process.send_signal(number)
    assert process.wait(30) == 128 + number
    assert process.stderr.read() == ""
    process.stderr.close()
    assert list(tmp_path.iterdir()) == []


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    program = (
        "import os, signal, sys\n"
        "from gpuiso.cli import main as module\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "def told(arguments):\n"
        "    os.kill(os.getpid(), signal.SIGHUP)\n"
        "    return 0\n"
        "module._told = told\n"
        "sys.exit(module.main([]))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, timeout=60, check=False)
    assert done.returncode == 0


def test_help_without_arguments_is_plain(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ((), ("cdi",), ("rules",), ("ledger",), ("hook",)):
        result = run(capsys, *arguments)
        assert (result.code, result.err) == (2, "")
        assert result.out.startswith(f"Usage: {' '.join(('gpuiso', *arguments))} ")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_watch_that_is_stopped_is_done(tmp_path: Path, number: signal.Signals) -> None:
    # Whatever GPUs are here, it is told of one change and waits for the next.
    program = (
        "import sys, time\n"
        "from gpuiso.cdi import refresh\n"
        "from gpuiso.cli.main import main\n"
        "from gpuiso.errors import NotSupported\n"
        "def watch(*_):\n"
        "    yield NotSupported('watching')\n"
        "    time.sleep(60)\n"
        "refresh.watch = watch\n"
        "sys.exit(main())\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, "cdi", "refresh", "--watch", "--directory", str(tmp_path)],
        cwd=REPOSITORY,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert process.stderr.readline() == "gpuiso: watching\n"
    process.send_signal(number)
    assert process.wait(30) == 0
    assert process.stderr.read() == ""
    process.stderr.close()
