# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import check_schema, run, start
from tests.map.hosts import MapMaker

Capture = pytest.CaptureFixture[str]
HOSTILE = '<img src=x onerror="alert(1)">\x1b]0;owned\x07\u202e'


@pytest.fixture
def maker(tmp_path: Path) -> MapMaker:
    return MapMaker(tmp_path / "host")


@pytest.fixture
def fine(maker: MapMaker) -> str:
    maker.container(10, "one", {"NVIDIA_VISIBLE_DEVICES": "0"}, gpus=[0], holds=("/dev/nvidia0",))
    maker.nvml({10: 34 * 1024}, {})
    return str(maker.write())


@pytest.fixture
def mixed(tmp_path: Path) -> str:
    maker = MapMaker(tmp_path / "mixed", gpus=8)
    maker.container(10, "one", {"NVIDIA_VISIBLE_DEVICES": "0"}, gpus=[0], holds=("/dev/nvidia0",))
    maker.container(11, "all-of-them", {"NVIDIA_VISIBLE_DEVICES": "1"}, gpus=range(8))
    env = {"NVIDIA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": HOSTILE}
    maker.container(12, HOSTILE, env, gpus=[1], allowed=[])
    maker.files["/proc/12/comm"] = f"{HOSTILE[:15]}\n"
    maker.process(13, cgroup="/system.slice/old.service", holds=("/dev/nvidia3",))
    maker.cgroups["/system.slice/old.service"] = {"device_programs": [maker.program([])]}
    maker.nvml({10: 141 * 1024, 9999: 5}, *({} for _ in range(7)))
    return str(maker.write())


def test_text(capsys: Capture, fine: str) -> None:
    result = run(capsys, "map", "--from", fine)
    assert result.code == 0
    lines = result.out.splitlines()
    assert lines[0] == f"no isolation leak, no lost GPU: 1 workload, 2 GPUs on {fine}"
    assert any(line.split() == ["workload", "GPU", "0", "GPU", "1"] for line in lines)
    assert any(line.split() == ["container", "one", "●", "use", "·"] for line in lines)
    assert "34.0G" in result.out
    assert "\x1b" not in result.out


def test_leaks_and_lost_gpus_are_in_the_first_line(capsys: Capture, mixed: str) -> None:
    result = run(capsys, "map", "--from", mixed)
    assert result.code == 1
    assert " ".join(result.out.split()).startswith("7 isolation leaks, 1 lost GPU: 4 workloads, 8 GPUs on ")
    assert "LEAK  container all-of-them, GPU 0, GPU 2, GPU 3" in result.out
    assert "$ gpuiso explain --pid 12 /dev/nvidia1" in result.out
    assert "pid 9999 holds 5M" in result.out


def test_eighty_columns(mixed: str) -> None:
    result = start("map", "--from", mixed, env={"COLUMNS": "80"})
    table = [line for line in result.out.splitlines() if "GPU 7" in line or "! LEAK" in line]
    assert table[0].split()[-2:] == ["GPU", "7"]
    assert all(len(line) <= 80 for line in result.out.splitlines() if not line.startswith("  $"))


def test_a_narrow_terminal_gets_several_tables(mixed: str) -> None:
    result = start("map", "--from", mixed, env={"COLUMNS": "50"})
    assert sum(line.startswith("workload") for line in result.out.splitlines()) == 3
    assert all(len(line) <= 50 for line in result.out.splitlines() if not line.startswith("  $"))


def test_without_utf8(mixed: str) -> None:
    result = start("map", "--from", mixed, env={"PYTHONIOENCODING": "ascii:backslashreplace"})
    assert "x LOST" in result.out
    assert "* use" in result.out
    assert result.out.isascii()


def test_json(capsys: Capture, fine: str, mixed: str) -> None:
    result = run(capsys, "map", "--from", fine, "--json")
    assert result.code == 0
    check_schema(result.json, "map")
    (workload,) = result.json["workloads"]
    assert workload["variables"] == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "0"}]
    assert [cell["state"] for cell in workload["cells"]] == ["use", "closed"]
    result = run(capsys, "map", "--from", mixed, "--json")
    check_schema(result.json, "map")
    assert (result.code, result.json["leaks"], result.json["lost"]) == (1, 7, 1)
    assert result.json["unattributed"] == [{"gpu": "GPU 0", "pid": 9999, "memory": 5 << 20}]


def test_every(capsys: Capture, maker: MapMaker) -> None:
    maker.process(10, cgroup="/system.slice/sshd.service")
    host = str(maker.write())
    assert "1 other neither holds nor selects a GPU (--every lists them)" in run(capsys, "map", "--from", host).out
    assert "unit sshd.service" in run(capsys, "map", "--from", host, "--every").out


def test_a_record_without_processes_says_nothing(capsys: Capture, maker: MapMaker) -> None:
    host = str(maker.write())
    result = run(capsys, "map", "--from", host)
    assert result.code == 5
    assert " ".join(result.out.split()).startswith("no process can be looked at (none was recorded): 2 GPUs on ")
    as_json = run(capsys, "map", "--from", host, "--json")
    assert as_json.code == 5
    check_schema(as_json.json, "map")


def test_a_record_that_was_written_here_gives_the_same_map(capsys: Capture, mixed: str, tmp_path: Path) -> None:
    again = str(tmp_path / "again.tar.gz")
    run(capsys, "doctor", "--from", mixed, "--record", again)
    first, second = (run(capsys, "map", "--from", host, "--json").json["workloads"] for host in (mixed, again))
    assert [w["name"] for w in first] == [w["name"] for w in second]
    for one, other in zip(first, second, strict=True):
        assert [cell["state"] for cell in one["cells"]] == [cell["state"] for cell in other["cells"]]


def test_this_host(capsys: Capture) -> None:
    result = run(capsys, "map", "--json")
    check_schema(result.json, "map")
    assert result.code in (0, 1)
    assert run(capsys, "map").code == result.code


def test_strangers_do_not_reach_the_terminal(capsys: Capture, mixed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    out = run(capsys, "map", "--from", mixed).out
    for sequence in ("\x1b]0", "\x07", "\u202e"):
        assert sequence not in out


def test_wrong_usage(capsys: Capture, fine: str, tmp_path: Path) -> None:
    page = str(tmp_path / "page.html")
    for verb in ("map", "doctor"):
        result = run(capsys, verb, "--from", fine, "--json", "--html", page)
        assert result.code == 2
        assert "--html" in result.out
    assert run(capsys, "doctor", "--rules", "--html", page).code == 2
    assert run(capsys, "doctor", "--npd", "--html", page).code == 2
    assert run(capsys, "map", "--from", str(tmp_path / "nothing")).code == 4
    assert not Path(page).exists()


@pytest.mark.parametrize(("verb", "code"), [("map", 1), ("doctor", 1)])
def test_pages_say_where_they_went(capsys: Capture, mixed: str, tmp_path: Path, verb: str, code: int) -> None:
    page = tmp_path / "page.html"
    result = run(capsys, verb, "--from", mixed, "--html", str(page))
    assert result.code == code
    assert result.out.splitlines()[-1] == f"written to {page}"
    content = page.read_text()
    assert content.startswith("<!DOCTYPE html>")
    assert "<img" not in content
    assert "\u202e" not in content
    assert "\x1b" not in content
    assert "&lt;img src=x onerror=&quot;alert(1)&quot;&gt;" in content


def test_pages_replace_files_and_nothing_else(capsys: Capture, fine: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("old")
    assert run(capsys, "map", "--from", fine, "--html", str(page)).code == 0
    assert page.read_text() != "old"
    link = tmp_path / "link.html"
    link.symlink_to(page)
    before = page.read_text()
    for place in (link, tmp_path, Path("/dev/null")):
        result = run(capsys, "map", "--from", fine, "--html", str(place))
        assert result.code == 2
        assert result.err.startswith(f"gpuiso: {place}: is not a regular file")
    assert page.read_text() == before
    missing = run(capsys, "map", "--from", fine, "--html", str(tmp_path / "none" / "page.html"))
    assert missing.code == 2
    assert "No such file or directory" in missing.err
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["link.html", "page.html"]
