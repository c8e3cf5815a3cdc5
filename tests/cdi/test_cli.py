# SPDX-License-Identifier: Apache-2.0
"""``gpuiso cdi``: what the verbs print, and what they end with."""

from __future__ import annotations

import io
import json
import os
import re
import stat
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gpuiso.cdi.validate import read_spec
from gpuiso.cli.cdi import app
from gpuiso.cli.main import main
from gpuiso.errors import BadInput, FailedAndUndone, NotFound, Unknown, UsageError
from tests.cli.command import check_schema
from tests.support import REPOSITORY, make_fake_tree

RECORD = str(REPOSITORY / "examples/hosts/h200-x4")

GOOD = "cdiVersion: 0.6.0\nkind: vendor.com/gpu\ndevices:\n- name: d0\n  containerEdits: {env: [A=1]}\n"
CONFIG: dict[str, Any] = {"ociVersion": "1.1.0", "process": {"user": {"uid": 0, "gid": 0}, "cwd": "/"}, "x": 1}


def run(*argv: str, stdin: str | None = None) -> tuple[int, str]:
    """Exit status and standard output. An error of the library comes out as it is."""
    result = CliRunner().invoke(app, argv, input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


@pytest.fixture
def specs(tmp_path: Path) -> Path:
    return make_fake_tree(tmp_path / "specs", {"good.yaml": GOOD})


def test_list_says_what_can_be_asked_for(specs: Path) -> None:
    assert run("list", "--spec-dir", str(specs)) == (0, "vendor.com/gpu=d0\n")
    status, out = run("list", "--spec-dir", str(specs), "--json")
    assert status == 0
    assert json.loads(out) == {
        "gpuiso": "cdi-list/1",
        "devices": ["vendor.com/gpu=d0"],
        "errors": [],
        "conflicts": [],
    }


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_list_draws_a_tree_on_a_terminal(specs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(["cdi", "list", "--spec-dir", str(specs)]) == 0
    text = re.sub(r"\x1b\[[0-9;]*m", "", screen.getvalue())
    assert text.splitlines() == ["vendor.com/gpu", f"└── d0  {specs}/good.yaml"]


def test_what_a_file_says_cannot_steer_a_terminal(specs: Path) -> None:
    make_fake_tree(specs, {"bad\x1b[2J.yaml": GOOD.replace("d0", "d1").replace("A=1", "A\x1b[2J")})
    status, out = run("validate", str(specs))
    assert status == 2
    assert "\x1b" not in out
    assert "bad\\x1b[2J.yaml: refused" in out


def test_list_reports_bad_files_and_conflicts(specs: Path) -> None:
    make_fake_tree(specs, {"bad.json": "{", "twin.json": GOOD, "sub.yaml/x.yaml": GOOD, "notes.yml": "{"})
    status, out = run("list", "--spec-dir", str(specs), "--json")
    document = json.loads(out)
    check_schema(document, "cdi-list")
    assert status == 1
    assert document["devices"] == []
    assert document["conflicts"] == [
        {"device": "vendor.com/gpu=d0", "files": [str(specs / "good.yaml"), str(specs / "twin.json")]}
    ]
    assert {Path(error["file"]).name for error in document["errors"]} == {"bad.json", "good.yaml", "twin.json"}
    assert document["errors"][0]["message"].startswith(f"{specs}/bad.json:2:1: not YAML")


def test_list_of_nothing_is_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("list", "--spec-dir", str(tmp_path)) == (0, "")
    monkeypatch.setattr("gpuiso.cdi.cache.DEFAULT_SPEC_DIRS", (str(tmp_path / "none"),))
    assert run("list") == (0, "")


def test_a_directory_that_is_named_must_be_there(specs: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIG))
    for wrong, error, says in (
        (tmp_path / "none", NotFound, "none: no such directory"),
        (specs / "good.yaml", UsageError, "good.yaml: not a directory"),
    ):
        with pytest.raises(error, match=says):
            run("list", "--spec-dir", str(specs), "--spec-dir", str(wrong))
        with pytest.raises(error, match=says):
            run("inject", "--spec-dir", str(wrong), "--spec-dir", str(specs), str(config), "vendor.com/gpu=d0")
    status, out = run("list", "--spec-dir", "/none", "--from", RECORD, "--json")
    assert (status, json.loads(out)["errors"][0]["message"]) == (1, "/none: not recorded")


def test_validate_looks_files_up_in_the_record(specs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meta = Path(RECORD, "record.json").read_bytes()
    record = make_fake_tree(tmp_path / "record", {"record.json": meta, "root/etc/cdi/a.yaml": GOOD})
    status, out = run("validate", "--from", str(record), "/etc/cdi/a.yaml")
    assert (status, out) == (0, "/etc/cdi/a.yaml: accepted, 1 device\n")
    monkeypatch.chdir(specs)
    for path, error in ((str(specs / "good.yaml"), Unknown), ("good.yaml", NotFound)):
        assert run("validate", path)[0] == 0
        with pytest.raises(error) as refused:
            run("validate", "--from", str(record), path)
        assert refused.value.hint == "with --from, files are looked up in the record, not on this machine"


def test_validate_accepts_refuses_and_warns(specs: Path) -> None:
    assert run("validate", str(specs)) == (0, f"{specs}/good.yaml: accepted, 1 device\n")

    make_fake_tree(
        specs, {"hook.yaml": GOOD.replace("d0", "d1").replace("[A=1]", "[A=1], hooks: [{hookName: poststop, path: h}]")}
    )
    status, out = run("validate", str(specs / "hook.yaml"))
    assert status == 1
    assert "warning: devices[0].containerEdits.hooks[0].path: 'h'" in out
    assert "[CDI-HOOK-RELATIVE]" in out

    make_fake_tree(specs, {"bad.yaml": GOOD.replace("A=1", "A").replace("d0", "d-")})
    status, out = run("validate", str(specs), "--json")
    assert status == 2
    check_schema(json.loads(out), "cdi-validate")
    verdicts = {Path(file["file"]).name: file for file in json.loads(out)["files"]}
    assert {name: file["verdict"] for name, file in verdicts.items()} == {
        "good.yaml": "accept",
        "hook.yaml": "accept",
        "bad.yaml": "reject",
    }
    assert [(p["where"], p["line"]) for p in verdicts["bad.yaml"]["problems"]] == [
        ("devices[0].name", 4),
        ("devices[0].containerEdits.env[0]", 5),
    ]
    assert verdicts["hook.yaml"]["warnings"][0]["severity"] == "warning"


def test_validate_needs_what_it_is_given(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no such file"):
        run("validate", str(tmp_path / "none.yaml"))


def test_inject_prints_the_edited_config(specs: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIG))
    expected = CONFIG | {"process": CONFIG["process"] | {"env": ["A=1"]}}
    for argv, stdin in (((str(config),), None), (("-",), json.dumps(CONFIG))):
        status, out = run("inject", "--spec-dir", str(specs), *argv, "vendor.com/gpu=d0", stdin=stdin)
        assert (status, json.loads(out)) == (0, expected)
    assert json.loads(config.read_text()) == CONFIG


def test_inject_write_replaces_the_file_and_keeps_its_mode(specs: Path, tmp_path: Path) -> None:
    config = tmp_path / "real.json"
    config.write_text(json.dumps(CONFIG))
    config.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(config, 12, 34)
    link = tmp_path / "config.json"
    link.symlink_to("real.json")
    before = config.stat()
    assert run("inject", "--write", "--spec-dir", str(specs), str(link), "vendor.com/gpu=d0") == (0, "")
    after = config.stat()
    assert json.loads(config.read_text())["process"]["env"] == ["A=1"]
    assert link.is_symlink()
    assert stat.S_IMODE(after.st_mode) == 0o640
    assert (after.st_uid, after.st_gid) == (before.st_uid, before.st_gid)
    assert after.st_ino != before.st_ino
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "real.json", "specs"]


def test_inject_lists_every_unresolved_name_and_writes_nothing(specs: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIG))
    with pytest.raises(NotFound) as caught:
        run("inject", "--write", "--spec-dir", str(specs), str(config), "v/g=1", "vendor.com/gpu=d0", "nope", "-x/g=1")
    assert caught.value.message == "unresolvable CDI devices: v/g=1, nope, -x/g=1"
    assert caught.value.exit_code == 4
    assert json.loads(config.read_text()) == CONFIG


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "config.json:1:2: not JSON"),
        ("[]", "the top of the document must be an object"),
        ('{"process": []}', "process must be an object"),
        ('{"mounts": {}}', "mounts must be a list"),
        ('{"mounts": [1]}', r"mounts\[0\] must be an object"),
        ('{"mounts": [{"destination": 1}]}', r"mounts\[0\].destination must be text"),
        ('{"hooks": {"prestart": 1}}', "hooks.prestart must be a list"),
        ('{"process": {"user": {"uid": "x"}}}', "process.user.uid must be an integer"),
        ('{"a": 1e999}', "1e999 is beyond the range of numbers"),
        ('{"a": 1, "a": 1}', "'a' is given twice in one object"),
        ("[" * 100_000, "nested too deep|not JSON"),
    ],
)
def test_inject_refuses_what_is_no_config(text: str, said: str, specs: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(text)
    with pytest.raises(BadInput, match=said):
        run("inject", "--spec-dir", str(specs), str(config), "vendor.com/gpu=d0")


def test_inject_needs_a_config_it_can_read_and_write(specs: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="No such file or directory"):
        run("inject", "--spec-dir", str(specs), str(tmp_path / "none"), "vendor.com/gpu=d0")
    with pytest.raises(UsageError, match="Is a directory"):
        run("inject", "--spec-dir", str(specs), str(tmp_path), "vendor.com/gpu=d0")
    with pytest.raises(UsageError, match="standard input"):
        run("inject", "--write", "-", "vendor.com/gpu=d0", stdin="{}")
    with pytest.raises(UsageError, match="no such option: --wirte"):
        run("inject", "--wirte", str(tmp_path / "config.json"), "vendor.com/gpu=d0")
    latin = tmp_path / "latin.json"
    latin.write_bytes(b'{"x": "\xe9"}')
    with pytest.raises(BadInput, match=r"latin\.json:1:8: byte 0xe9 is not UTF-8"):
        run("inject", "--spec-dir", str(specs), str(latin), "vendor.com/gpu=d0")


def test_generate_prints_or_writes_what_the_name_says(tmp_path: Path) -> None:
    status, printed = run("generate", "--from", RECORD)
    spec, problems = read_spec(printed.encode())
    assert (status, problems) == (0, [])
    assert spec is not None
    assert printed.startswith("---\n")
    for name, first in (("new/nvidia.yaml", "---"), ("nvidia.json", "{"), ("nvidia", "---")):
        file = tmp_path / name
        assert run("generate", "--from", RECORD, "--output", str(file)) == (0, "")
        assert file.read_text().startswith(first)
        assert read_spec(file.read_bytes()) == (spec, [])
        assert stat.S_IMODE(file.stat().st_mode) == 0o644
    assert run("generate", "--from", RECORD, "--format", "json")[1].startswith("{")


def test_generate_takes_names_kinds_and_json() -> None:
    status, out = run(
        "generate",
        *("--from", RECORD, "--json", "--no-all-device", "--vendor", "example.com", "--class", "h200"),
        *("--device-name-strategy", "type-index", "--hooks", "nvidia", "--nvidia-cdi-hook-path", "/opt/hook"),
    )
    document = json.loads(out)
    check_schema(document, "cdi-generate")
    assert (status, document["gpuiso"], document["messages"]) == (0, "cdi-generate/1", [])
    assert document["spec"]["kind"] == "example.com/h200"
    assert [device["name"] for device in document["spec"]["devices"]] == ["gpu0", "gpu1", "gpu2", "gpu3"]
    assert {hook["path"] for hook in document["spec"]["containerEdits"]["hooks"]} == {"/opt/hook"}


def test_generate_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--dev-root 'dev' must be an absolute path"):
        run("generate", "--from", RECORD, "--dev-root", "dev")
    with pytest.raises(NotFound, match="no AMD GPU"):
        run("generate", "--from", RECORD, "--mode", "amd")
    assert list(tmp_path.iterdir()) == []


def test_refresh_says_what_it_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpuiso.host.live import LiveHost
    from gpuiso.host.protocol import Host
    from tests.cdi.nvidia_host import nvidia_host
    from tests.cdi.test_refresh import Mixed

    def made_up(record: str | None = None) -> Host:
        return LiveHost() if record else Mixed(nvidia_host(without=["/dev/nvidia-uvm"]), tmp_path)

    monkeypatch.setattr("gpuiso.host.open_host", made_up)
    file = tmp_path / "nvidia.yaml"
    assert run("refresh", "--directory", str(tmp_path)) == (0, f"{file}: written, 5 devices\n")
    assert run("refresh", "--directory", str(tmp_path)) == (0, f"{file}: up to date, 5 devices\n")
    status, out = run("refresh", "--directory", str(tmp_path), "--json")
    check_schema(json.loads(out), "cdi-refresh")
    (told,) = json.loads(out)["files"]
    assert (status, told["changed"], told["devices"]) == (0, False, 5)
    assert told["messages"] == ["/dev/nvidia-uvm does not exist yet; written as 510:0, which its driver registered"]


def test_generate_makes_one_directory_at_most_and_writes_into_devices(tmp_path: Path) -> None:
    far = tmp_path / "misspelt" / "cdi" / "nvidia.yaml"
    with pytest.raises(BadInput, match="there is no directory"):
        run("generate", "--from", RECORD, "--output", str(far))
    assert list(tmp_path.iterdir()) == []
    for device, code in (("/dev/null", 0), ("/dev/full", FailedAndUndone.exit_code)):
        before = Path(device).stat()
        try:
            got = run("generate", "--from", RECORD, "--output", device)[0]
        except FailedAndUndone as error:
            got = error.exit_code
        assert got == code
        assert (Path(device).stat().st_ino, Path(device).stat().st_mode) == (before.st_ino, before.st_mode)
