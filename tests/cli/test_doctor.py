# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import tarfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gpuiso.cli import npd as npd_module
from gpuiso.doctor.finding import Evidence, Finding, Rule
from tests.cli.command import check_schema, run, start
from tests.records import UUIDS, RecordMaker
from tests.support import SHARED, needs_shared

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def healthy(tmp_path: Path) -> str:
    maker = RecordMaker(tmp_path / "healthy")
    maker.add_process(7, {"CUDA_VISIBLE_DEVICES": UUIDS[0]})
    return str(maker.write())


@pytest.fixture
def broken(tmp_path: Path) -> str:
    maker = RecordMaker(tmp_path / "broken")
    maker.add_node("/dev/nvidia-uvm", 510, 0)
    return str(maker.write())


def test_a_healthy_host(capsys: Capture, healthy: str) -> None:
    result = run(capsys, "doctor", "--from", healthy)
    assert result.code == 0
    assert result.out.startswith("healthy: 2 GPUs on ")
    assert UUIDS[0] in result.out
    assert "\x1b" not in result.out


def test_a_fault_is_told_with_cause_evidence_and_fix(capsys: Capture, broken: str) -> None:
    result = run(capsys, "doctor", "--from", broken)
    assert result.code == 1
    first = result.out.splitlines()[0]
    assert first == f"1 error on {broken}"
    for part in ("ERROR", "GPU-UVM-MAJOR-MISMATCH", "cause", "evidence", "510", "238", "fix"):
        assert part in result.out


def test_json(capsys: Capture, healthy: str, broken: str) -> None:
    result = run(capsys, "doctor", "--from", broken, "--json")
    assert result.code == 1
    check_schema(result.json, "doctor")
    assert [finding["rule"] for finding in result.json["findings"]] == ["GPU-UVM-MAJOR-MISMATCH"]
    result = run(capsys, "doctor", "--from", healthy, "--json")
    assert (result.code, result.json["verdict"]) == (0, "healthy")
    check_schema(result.json, "doctor")


def test_this_host_as_json(capsys: Capture) -> None:
    result = run(capsys, "doctor", "--json")
    check_schema(result.json, "doctor")
    assert result.code in (0, 1)


def test_a_pid_that_is_not_there(capsys: Capture, healthy: str) -> None:
    for arguments in (("doctor", "--pid", "4194305"), ("doctor", "--from", healthy, "--pid", "8")):
        result = run(capsys, *arguments)
        assert (result.code, result.out) == (4, "")
        assert "no process" in result.err
        as_json = run(capsys, *arguments, "--json")
        check_schema(as_json.json, "error")
        assert as_json.json["error"]["code"] == "not-found"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("doctor", "--pid", "x"), "'x' is not a number of 1 or more"),
        (("doctor", "--pid", "0"), "'0' is not a number of 1 or more"),
        (("doctor", "--pid", "1_0"), "'1_0' is not a number of 1 or more"),
        (("doctor", "--pid", "١٢"), "'١٢' is not a number of 1 or more"),
        (("doctor", "--pid", "1 "), "'1 ' is not a number of 1 or more"),
        (("doctor", "--pid", "1" * 5000), f"'{'1' * 40}…' is not a number of 1 or more"),
        (("explain", "--pid", "1_0", "/dev/null"), "'1_0' is not a number of 1 or more"),
        (("govern", "/a=1/2", "--seconds", "nan"), "'nan' is not a number of 0.1 or more"),
        (("govern", "/a=1000/100000", "/a=2000/100000"), "/a is given twice: a cgroup has one limit"),
        (("cdi", "refresh", "--interval", "inf"), "'inf' is not a number of 1 or more"),
        (("doctor", "--record", "-"), "'-' is no place for a record"),
        (("doctor", "--record", ""), "'' is no place for a record"),
        (("doctor", "--record", "c.tar"), "c.tar: the name of a record's archive ends in .tar.gz or .tgz"),
        (("doctor", "--record", "c.TAR.GZ"), "c.TAR.GZ: the name of a record's archive ends in .tar.gz or .tgz"),
        (("doctor", "--nonsense"), "No such option"),
        (("nonsense",), "No such command"),
        (("doctor", "--npd", "--json"), "--npd prints one line"),
        (("doctor", "--raw"), "--raw goes with --record"),
        (("doctor", "--markdown"), "--markdown goes with --rules"),
    ],
)
def test_wrong_usage_is_one_sentence(capsys: Capture, arguments: tuple[str, ...], says: str) -> None:
    result = run(capsys, *arguments)
    assert result.code == 2
    assert says in result.err or says in result.out
    assert "Traceback" not in result.err


def test_not_a_record(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "empty.tar.gz").write_bytes(b"")
    (tmp_path / "dir").mkdir()
    for place, code in ((tmp_path / "empty.tar.gz", 2), (tmp_path / "dir", 2), (tmp_path / "none", 4)):
        result = run(capsys, "doctor", "--from", str(place))
        assert result.code == code
        assert str(place) in result.err
        assert len(result.err.strip().splitlines()) <= 2


def test_npd(capsys: Capture, healthy: str, broken: str) -> None:
    result = run(capsys, "doctor", "--from", healthy, "--npd")
    assert result.code == 0
    assert result.out.count("\n") == 1
    assert len(result.out.encode()) <= 81
    result = run(capsys, "doctor", "--from", broken, "--npd")
    assert result.code == 1
    assert result.out.startswith("GPU-UVM-MAJOR-MISMATCH: ")
    assert len(result.out.encode()) <= 81


def test_npd_of_a_bad_record_is_unknown_to_the_detector(capsys: Capture, tmp_path: Path) -> None:
    for record in (tmp_path, tmp_path / "nothing"):
        result = run(capsys, "doctor", "--from", str(record), "--npd")
        assert (result.code, result.err) == (2, "")
        assert str(record)[:50] in result.out
        assert result.out.count("\n") == 1


def test_npd_when_the_examination_never_ends(capsys: Capture, healthy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*_: object) -> tuple[int, str]:
        import signal

        signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))
        while True:
            signal.pause()

    monkeypatch.setattr(npd_module, "_DEADLINE", 0.3)
    monkeypatch.setattr(npd_module, "_line", hang)
    result = run(capsys, "doctor", "--from", healthy, "--npd")
    assert (result.code, result.out) == (2, "no answer within 0.3 s: the driver or /proc hangs\n")


def test_npd_line_is_cut_at_eighty_bytes() -> None:
    assert npd_module._shorten("é" * 50) == "é" * 38 + "..."
    assert npd_module._shorten("a\n  b") == "a b"


def test_rules(capsys: Capture) -> None:
    listed = run(capsys, "doctor", "--rules")
    assert listed.code == 0
    assert "GPU-CVD-EMPTY" in listed.out
    page = run(capsys, "doctor", "--rules", "--markdown")
    assert "| GPU-CVD-EMPTY | " in page.out
    as_json = run(capsys, "doctor", "--rules", "--json")
    assert as_json.json["gpuiso"] == "doctor-rules/1"
    assert len(as_json.json["rules"]) == len(listed.out.splitlines())


def test_a_record_reads_back_with_the_same_findings(capsys: Capture, broken: str, tmp_path: Path) -> None:
    out = tmp_path / "out.tar.gz"
    first = run(capsys, "doctor", "--from", broken, "--json", "--record", str(out))
    assert first.code == 1
    assert tarfile.is_tarfile(out)
    again = run(capsys, "doctor", "--from", str(out), "--json")
    assert again.json["findings"] == first.json["findings"]
    assert UUIDS[0] not in again.out


def test_an_existing_record_is_not_overwritten(capsys: Capture, broken: str, tmp_path: Path) -> None:
    out = tmp_path / "out.tar.gz"
    out.write_text("precious")
    result = run(capsys, "doctor", "--from", broken, "--record", str(out))
    assert result.code == 2
    assert out.read_text() == "precious"


def test_no_colour_and_a_narrow_terminal(healthy: str) -> None:
    plain = start("doctor", "--from", healthy, env={"NO_COLOR": "1", "FORCE_COLOR": ""})
    assert "\x1b" not in plain.out
    narrow = start("doctor", "--from", healthy, env={"COLUMNS": "40"})
    assert narrow.code == 0
    assert all(len(line) <= 40 for line in narrow.out.splitlines())


def test_a_reader_that_goes_away_is_no_failure(healthy: str) -> None:
    import subprocess
    import sys

    program = "import sys; from gpuiso.cli.main import main; sys.exit(main())"
    process = subprocess.Popen(
        [sys.executable, "-c", program, "doctor", "--from", healthy],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    errors = process.stderr.read()
    process.stderr.close()
    assert process.wait(60) in (0, 141)
    assert "Traceback" not in errors


@needs_shared
def test_the_recorded_h200_host(capsys: Capture) -> None:
    result = run(capsys, "doctor", "--from", os.fspath(SHARED / "hosts" / "h200-x4") if SHARED else "")
    assert result.code == 0
    assert result.out.startswith("healthy: 4 GPUs")


def test_npd_tells_what_was_found_by_the_deadline(
    capsys: Capture, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unfinished(host: object, *, heard: Callable[[Sequence[Finding]], None]) -> None:
        finding = Rule("GPU-TEST", "error", "Something is wrong", "").finding("c", evidence=[Evidence("a", "b")])
        heard([finding, replace(finding, severity="info"), finding])
        while True:
            time.sleep(1)

    monkeypatch.setattr(npd_module, "_DEADLINE", 0.3)
    monkeypatch.setattr(npd_module, "examine", unfinished)
    result = run(capsys, "doctor", "--from", broken, "--npd")
    assert (result.code, result.out) == (1, "GPU-TEST: Something is wrong (+1 more)\n")


def test_npd_blames_nothing_that_is_only_slow(capsys: Capture, broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(host: object, *, heard: Callable[[Sequence[Finding]], None]) -> None:
        while True:
            heard([])

    monkeypatch.setattr(npd_module, "_DEADLINE", 0.3)
    monkeypatch.setattr(npd_module, "examine", slow)
    result = run(capsys, "doctor", "--from", broken, "--npd")
    assert (result.code, result.out) == (2, "not finished within 0.3 s, and nothing found by then\n")


def test_npd_shows_an_error_of_its_own(capsys: Capture, broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(host: object, *, heard: object) -> None:
        raise ValueError("odd")

    monkeypatch.setattr(npd_module, "examine", fails)
    result = run(capsys, "doctor", "--from", broken, "--npd")
    assert (result.code, result.out) == (2, "the examination ended without an answer\n")
    assert "ValueError: odd" in result.err
