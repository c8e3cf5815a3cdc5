# SPDX-License-Identifier: Apache-2.0
"""What a record does not tell is told as that, and nothing else goes missing with it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.command import check_schema, run
from tests.records import UUIDS, RecordMaker
from tests.support import REPOSITORY

Capture = pytest.CaptureFixture[str]
COMMANDS = (
    ("doctor", "--all"),
    ("doctor", "--npd"),
    ("map", "--every"),
    ("visible",),
    ("visible", "--pid", "7"),
    ("explain", "--pid", "7", "/dev/nvidia0"),
    ("cdi", "generate", "--hooks", "none"),
)


def without_a_version(maker: RecordMaker) -> None:
    maker.files["/proc/driver/nvidia/version"] = None


def without_modules(maker: RecordMaker) -> None:
    maker.files["/proc/modules"] = None


def without_devices(maker: RecordMaker) -> None:
    maker.files["/proc/devices"] = "Character devices:\n  1 mem\n"


def without_information(maker: RecordMaker) -> None:
    for path in maker.files:
        if path.endswith("/information"):
            maker.files[path] = "Model: \t\t Unknown\n"


def with_other_nodes(kind: str) -> Callable[[RecordMaker], None]:
    def change(maker: RecordMaker) -> None:
        for path, node in maker.nodes.items():
            if "/dev/nvidia" in path:
                more = {"target": "nowhere"} if kind == "l" else {"mode": "0644", "uid": 0, "gid": 0}
                node.clear()
                node.update({"path": path, "type": kind, **more})

    return change


def without_nodes(maker: RecordMaker) -> None:
    for path in [path for path in maker.nodes if "/dev/nvidia" in path]:
        del maker.nodes[path]


CHANGES = {
    "version": [without_a_version],
    "modules": [without_modules],
    "devices": [without_devices],
    "information": [without_information],
    "nodes": [without_nodes, without_a_version],
    **{f"type-{kind}": [with_other_nodes(kind), without_a_version] for kind in "pfdsl"},
    "everything": [without_a_version, without_modules, without_information, without_nodes],
}


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
def test_nobody_reads_none(capsys: Capture, tmp_path: Path, changes: list[Callable[[RecordMaker], None]]) -> None:
    maker = RecordMaker(tmp_path / "host")
    maker.add_process(7, {"CUDA_VISIBLE_DEVICES": f"{UUIDS[0]},MIG-1", "CUDA_DEVICE_ORDER": "PCI"})
    maker.add_node("/dev/nvidia-nvswitchctl", 235, 255)
    for change in changes:
        change(maker)
    host = str(maker.write())
    for command in COMMANDS:
        result = run(capsys, *command, "--from", host)
        told = result.out + result.err
        assert told
        assert [line for line in told.splitlines() if re.search(r"\bNone\b|Traceback", line)] == []


@pytest.mark.parametrize("missing", ["kernel", "cgroup_mode", "systemd"])
def test_a_header_need_not_tell(capsys: Capture, tmp_path: Path, missing: str) -> None:
    maker = RecordMaker(tmp_path / "host")
    maker.add_process(7, {"CUDA_VISIBLE_DEVICES": UUIDS[0]})
    del maker.header[missing]
    host = str(maker.write())
    shown = run(capsys, "doctor", "--from", host)
    assert (shown.code, shown.err) == (0, "")
    word = {"kernel": "kernel", "cgroup_mode": "cgroups", "systemd": "systemd"}[missing]
    assert f" · {word} unknown" in shown.out
    assert "GPU 1" in shown.out
    assert run(capsys, "doctor", "--from", host, "--npd").code == 0
    for verb in ("doctor", "map"):
        as_json = run(capsys, verb, "--from", host, "--json")
        check_schema(as_json.json, verb)
        assert as_json.json["host"][missing] is None
        page = tmp_path / f"{verb}.html"
        assert run(capsys, verb, "--from", host, "--html", str(page)).code == as_json.code
        assert page.read_text().endswith("</html>\n")
    copy = str(tmp_path / "copy")
    assert run(capsys, "doctor", "--from", host, "--record", copy).code == 0
    assert run(capsys, "doctor", "--from", copy).code == 0


def test_without_nvml_s_reader(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    for program in ("/nothing/python", str(REPOSITORY / "README.md"), ""):
        monkeypatch.setattr(sys, "executable", program)
        for verb in ("doctor", "map", "visible"):
            result = run(capsys, verb, "--json")
            assert result.code in (0, 1, 5)
            assert "Traceback" not in result.err


def test_a_current_directory_that_is_gone(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    host = REPOSITORY / "examples/hosts/h200-x4"
    for arguments, codes in (
        (["doctor", "--from", str(host), "--record", "x.tar.gz"], {2}),
        (["doctor", "--from", str(host), "--html", "x.html"], {2}),
        (["cdi", "generate", "--from", str(host), "--hooks", "none", "--output", "x.yaml"], {2}),
        (["doctor", "--from", str(host), "--record", str(tmp_path / "x.tar.gz")], {0}),
        (["doctor", "--from", "x"], {4}),
        (["doctor"], {0, 1}),
    ):
        done = subprocess.run(
            ["/bin/sh", "-c", 'rmdir "$PWD"; exec "$0" -m gpuiso "$@"', sys.executable, *arguments],
            cwd=gone,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        gone.mkdir(exist_ok=True)
        assert done.returncode in codes
        assert "Traceback" not in done.stderr
