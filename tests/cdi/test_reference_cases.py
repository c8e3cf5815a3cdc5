# SPDX-License-Identifier: Apache-2.0
"""Every recorded case of the reference library (v1.1.0): what it lists, rejects, cannot resolve and injects.

``bad_files`` names what the library reported an error for, as ``DIRECTORY INDEX/FILE NAME``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpuiso.cdi.cache import load
from gpuiso.cdi.inject import inject, unresolved
from gpuiso.cli.main import main
from gpuiso.errors import GpuisoError
from gpuiso.host.live import LiveHost
from tests.support import REPOSITORY, SHARED, needs_shared

CASES_FILE = REPOSITORY / "tests/data/cdi/reference-cases.json"
CASES: list[dict[str, Any]] = json.loads(CASES_FILE.read_text(encoding="utf-8"))["cases"]


def write_spec_dirs(base: Path, spec_dirs: list[dict[str, str]]) -> tuple[str, ...]:
    """The directories of a case below ``base``, least important first."""
    for index, files in enumerate(spec_dirs):
        directory = base / str(index)
        directory.mkdir()
        for name, text in files.items():
            (directory / name).write_bytes(text.encode("utf-8"))
    return tuple(str(base / str(index)) for index in range(len(spec_dirs)))


@pytest.mark.parametrize("case", [pytest.param(case, id=case["id"]) for case in CASES])
def test_equals_the_reference(case: dict[str, Any], tmp_path: Path) -> None:
    expect = case["expect"]
    host = LiveHost()
    cache = load(host, write_spec_dirs(tmp_path, case["spec_dirs"]))

    assert list(cache.devices) == expect["devices"]
    assert sorted({str(Path(e.file).relative_to(tmp_path)) for e in cache.errors}) == expect["bad_files"]
    assert list(unresolved(cache, case["request"])) == expect["unresolved"]
    if expect["injects"]:
        assert inject(host, cache, case["oci"] or {}, case["request"]) == expect["oci"]
    else:
        with pytest.raises(GpuisoError):
            inject(host, cache, case["oci"] or {}, case["request"])


@pytest.mark.parametrize("case", [pytest.param(case, id=case["id"]) for case in CASES])
def test_the_command_line_equals_the_reference(
    case: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expect = case["expect"]
    directories = write_spec_dirs(tmp_path, case["spec_dirs"])
    options = [word for directory in directories for word in ("--spec-dir", directory)]
    config = tmp_path / "config.json"
    config.write_text(json.dumps(case["oci"] or {}))

    status = main(["cdi", "list", "--json", *options])
    listed = json.loads(capsys.readouterr().out)
    assert status == (1 if expect["bad_files"] else 0)
    assert listed["devices"] == expect["devices"]
    assert sorted({str(Path(e["file"]).relative_to(tmp_path)) for e in listed["errors"]}) == expect["bad_files"]

    status = main(["cdi", "inject", "--json", *options, str(config), *case["request"]])
    answer = json.loads(capsys.readouterr().out)
    if expect["injects"]:
        assert (status, answer) == (0, expect["oci"])
    else:
        assert status == (4 if expect["unresolved"] else status) != 0
        assert all(name in answer["error"]["message"] for name in expect["unresolved"])

    status = main(["cdi", "validate", "--json", *directories])
    judged = json.loads(capsys.readouterr().out)["files"]
    refused = sorted(str(Path(f["file"]).relative_to(tmp_path)) for f in judged if f["verdict"] == "reject")
    assert (refused, status == 2) == (expect["bad_files"], bool(expect["bad_files"]))


def test_there_are_183_cases() -> None:
    assert len(CASES) == 183
    assert len({case["id"] for case in CASES}) == 183


@needs_shared
def test_the_copy_is_the_collected_file() -> None:
    assert SHARED is not None
    assert CASES_FILE.read_bytes() == (SHARED / "cases/cdi.json").read_bytes()
