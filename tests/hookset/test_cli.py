# SPDX-License-Identifier: Apache-2.0
"""``gpuiso hook``: install, show, refresh, inject."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.cli.command import check_schema, run
from tests.support import make_fake_tree


def places(base: Path) -> list[str]:
    return ["--path", f"{base}/gpuiso-hook", "--hooks-dir", f"{base}/hooks.d"]


def test_install_show_and_remove(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    library = ["--library", f"{tmp_path}/lib"]
    tables = ["--tables", f"{tmp_path}/hook"]
    missing = run(capsys, "hook", "show", *places(tmp_path), *tables, "--json")
    check_schema(missing.json, "hook-show")
    assert (missing.code, missing.json["path"], missing.json["gpus"]) == (4, None, None)
    assert run(capsys, "hook", "install", *places(tmp_path), *library, "--python", sys.executable).code == 0
    found = run(capsys, "hook", "show", *places(tmp_path), *tables, "--json")
    check_schema(found.json, "hook-show")
    assert (found.code, found.json["current"], len(found.json["definitions"])) == (0, True, 2)
    text = run(capsys, "hook", "show", *places(tmp_path), *tables)
    assert "GPUs: not known, run gpuiso hook refresh" in text.out
    assert text.code == 0
    removed = run(capsys, "hook", "install", "--remove", *places(tmp_path), *library)
    assert removed.out.count("removed ") == 4
    gone = run(capsys, "hook", "show", *places(tmp_path), *tables)
    assert (gone.code, gone.err.splitlines()[0]) == (4, f"gpuiso: no hook at {tmp_path}/gpuiso-hook")


def test_refresh_writes_tables_and_cdi_devices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policies = make_fake_tree(tmp_path / "policy.d", {"null.rules": "allow c 1:3 rwm\n"})
    options = ["--policies", str(policies), "--tables", f"{tmp_path}/hook", "--cdi-dir", f"{tmp_path}/cdi"]
    done = run(capsys, "hook", "refresh", *options, "--json")
    check_schema(done.json, "hook-refresh")
    assert (done.code, done.json["policies"], done.json["errors"]) == (0, ["null"], [])
    assert done.json["grants"] is None
    (policies / "grants.yaml").write_text("gpuiso: 1\ngrants: [{containers: ['*']}]\n")
    assert "grants: 1 for containers" in run(capsys, "hook", "refresh", *options).out
    (policies / "grants.yaml").write_text("gpuiso: 1\ngrants: [{container: ['*']}]\n")
    wrong = run(capsys, "hook", "refresh", *options)
    assert (wrong.code, wrong.err) == (
        2,
        f"gpuiso: {policies}/grants.yaml:2:11: unknown key 'container'\n"
        "  a grant has users, groups, slices, containers, gpus, most, gpu.max, share\n",
    )
    shown = run(capsys, "hook", "show", *places(tmp_path), "--tables", f"{tmp_path}/hook", "--json")
    assert shown.json["grants"] == 1
    show = ["hook", "show", *places(tmp_path), *options[:4], "--json"]
    assert run(capsys, *show).json["problems"] == []
    os.utime(policies / "grants.yaml", (2e9, 2e9))
    assert run(capsys, *show).json["problems"] == [
        f"{policies} has changed since it was compiled; run gpuiso hook refresh"
    ]
    (policies / "grants.yaml").unlink()
    spec = (tmp_path / "cdi/gpuiso-policy.yaml").read_text()
    assert "kind: gpuiso.dev/policy" in spec
    assert "--policy" in spec

    (policies / "bad.rules").write_text("allow x\n")
    bad = run(capsys, "hook", "refresh", *options)
    assert bad.code == 2
    assert f"{policies}/bad.rules:1:7: " in bad.err
    assert "policies: null" in bad.out

    for file in policies.iterdir():
        file.unlink()
    assert run(capsys, "hook", "refresh", *options).code == 0
    assert not (tmp_path / "cdi/gpuiso-policy.yaml").exists()


def test_inject(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"ociVersion": "1.0.2", "annotations": {"kept": "yes"}}')
    before = config.read_text()
    shown = run(capsys, "hook", "inject", str(config), "--gpus", "0", "--gpu-max", "50000 100000")
    assert config.read_text() == before
    (hook,) = shown.json["hooks"]["createRuntime"]
    assert hook["args"][1:] == ["createRuntime", "--gpus", "0", "--gpu-max", "50000 100000"]
    assert run(capsys, "hook", "inject", "--write", str(config), "--policy", "p").code == 0
    written = json.loads(config.read_text())
    assert written["annotations"] == {"kept": "yes"}
    assert list(written["hooks"]) == ["createRuntime", "poststop"]


@pytest.mark.parametrize(
    ("content", "options", "code", "says"),
    [
        (None, ["--gpus", "0"], 4, "config.json: No such file or directory"),
        ("[", ["--gpus", "0"], 2, "not JSON"),
        ('{"hooks": {"poststop": 5}}', ["--gpus", "0"], 2, "hooks.poststop must be a list"),
        ('{"a": NaN}', ["--gpus", "0"], 2, "config.json: not JSON: NaN is no value of JSON"),
        ('{"a": [-Infinity]}', ["--gpus", "0"], 2, "config.json: not JSON: -Infinity is no value of JSON"),
        ('{"a": -1e999}', ["--gpus", "0"], 2, "config.json: not an OCI config: -1e999 is beyond the range"),
        ('{"linux": {"a": 1, "a": 1}}', ["--gpus", "0"], 2, "not an OCI config: 'a' is given twice in one object"),
        ("{}", [], 2, "nothing to hold the container to"),
    ],
)
def test_inject_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, options: list[str], code: int, says: str
) -> None:
    config = tmp_path / "config.json"
    if content is not None:
        config.write_text(content)
    refused = run(capsys, "hook", "inject", "--write", str(config), *options)
    assert (refused.code, refused.out) == (code, "")
    assert says in refused.err
