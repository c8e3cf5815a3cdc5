# SPDX-License-Identifier: Apache-2.0
"""``gpuiso rules apply|show|remove|unit`` and ``gpuiso recover``: what is printed, and the exit codes."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from gpuiso.apply.state import State
from tests.cli.command import check_schema, run
from tests.tiers import requires

POLICY = "allow default-nodes\nallow c 195:0 rw\nallow c 195:255 rw\n"


@pytest.fixture(autouse=True)
def run_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("gpuiso.apply.state.State.__init__.__defaults__", (tmp_path / "run",))
    return tmp_path / "run"


@pytest.fixture
def policy(tmp_path: Path) -> str:
    path = tmp_path / "gpu.rules"
    path.write_text(POLICY)
    return str(path)


@requires("kernel")
def test_a_life(capsys: pytest.CaptureFixture[str], tmp_cgroup: Path, policy: str, run_directory: Path) -> None:
    cgroup = f"{tmp_cgroup}/job"
    options = ("--cgroup", cgroup)
    planned = run(capsys, "rules", "apply", *options, "--create", "--dry-run", policy)
    assert planned.code == 0
    assert planned.out.startswith(f"would do for cgroup /{tmp_cgroup.name}/job:\n  1. make the cgroup")
    assert not (tmp_cgroup / "job").exists()
    assert not run_directory.exists()
    assert run(capsys, "rules", "apply", *options, policy).code == 4

    applied = run(capsys, "rules", "apply", *options, "--create", policy, "--json")
    assert applied.code == 0
    check_schema(applied.json, "rules-apply")
    assert len(applied.json["verified"]) == 2
    shown = run(capsys, "rules", "show", *options, "--json")
    check_schema(shown.json, "rules-show")
    assert shown.code == 0
    (program,) = shown.json["levels"][-1]["programs"]
    assert program["owner"] == "gpuiso"
    assert "allow c 195:0 rw" in program["rules"]
    people = run(capsys, "rules", "show", *options)
    assert "as it was applied" in people.out

    removed = run(capsys, "rules", "remove", *options, "--json")
    check_schema(removed.json, "rules-remove")
    assert removed.json["remembered"] is True
    assert not (tmp_cgroup / "job").exists()
    assert run(capsys, "rules", "remove", "--cgroup", str(tmp_cgroup)).code == 4
    recovered = run(capsys, "recover", "--json")
    check_schema(recovered.json, "recover")
    assert run(capsys, "recover").out == "nothing to recover\n"


def test_what_is_waited_for_is_said_after_a_second(capsys: pytest.CaptureFixture[str], run_directory: Path) -> None:
    held = State(run_directory)
    with ExitStack() as holder:
        holder.enter_context(held.lock())
        threading.Timer(1.5, holder.pop_all().close).start()
        waited = run(capsys, "recover", "--json")
    assert (waited.code, waited.json["done"]) == (0, [])
    assert (
        waited.err == f"gpuiso: waiting for another gpuiso, which has {run_directory}/lock and is changing something\n"
    )
    with ExitStack() as holder:
        holder.enter_context(held.lock())
        threading.Timer(0.3, holder.pop_all().close).start()
        assert run(capsys, "recover").err == ""


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["apply", "POLICY"], 2, "give one of --cgroup, --unit, --container and --pid"),
        (["apply", "--cgroup", "/x", "--pid", "1", "POLICY"], 2, "give one of"),
        (["apply", "--cgroup", "/", "POLICY"], 2, "the root of the cgroup tree cannot be limited"),
        (["apply", "--cgroup", "x", "POLICY"], 2, "does not start with /"),
        (["apply", "--cgroup", "/a/../b", "POLICY"], 2, "cannot be named with .."),
        (
            ["apply", "--cgroup", "/a\nb", "--create", "POLICY"],
            2,
            "'a\\nb' of a cgroup to be made has a control character",
        ),
        (["apply", "--cgroup", "/a/\x7fb/c", "--create", "POLICY"], 2, "has a control character in it"),
        (["apply", "--cgroup", "/a\nb", "POLICY"], 4, "no cgroup /a"),
        (["apply", "--cgroup", f"/{'ä' * 128}", "--create", "POLICY"], 2, "is longer than 255 bytes"),
        (["apply", "--cgroup", f"/{'a' * 256}", "POLICY"], 4, "no cgroup /aaa"),
        (["apply", "--cgroup", "/a" * 2000, "--create", "POLICY"], 2, "is longer than 3840 bytes"),
        (["apply", "--cgroup", "/a\udcff", "--create", "POLICY"], 2, "is not UTF-8"),
        (["apply", "--cgroup", "/nosuch", "/nosuch.yaml"], 4, "No such file"),
        (["apply", "--cgroup", "/nosuch", "POLICY"], 4, "no cgroup /nosuch"),
        (["apply", "--pid", "4194305", "POLICY"], 4, "no process 4194305"),
        (["apply", "--pid", "1", "--create", "POLICY"], 2, "--create goes with --cgroup"),
        (["apply", "--container", "no such", "POLICY"], 2, "neither the id nor the name"),
        (["apply", "--container", "nosuch", "POLICY"], 4, "no running container nosuch"),
        (["show"], 2, "give one of"),
        (["show", "--cgroup", "/nosuch"], 4, "no cgroup /nosuch"),
        (["show", "--pid", "4194305"], 4, "no process 4194305"),
        (["remove", "--cgroup", "/nosuch"], 4, "no cgroup /nosuch"),
        (["unit", "../x"], 2, "is not the name of a unit"),
        (["unit", "nosuch"], 4, "no unit file nosuch.service"),
    ],
)
def test_wrong_usage_is_one_sentence(
    capsys: pytest.CaptureFixture[str], policy: str, arguments: list[str], code: int, words: str
) -> None:
    result = run(capsys, "rules", *(policy if word == "POLICY" else word for word in arguments))
    assert (result.code, result.out) == (code, "")
    assert words in result.err
    assert "Traceback" not in result.err


def test_a_drop_in_is_printed(capsys: pytest.CaptureFixture[str], policy: str, tmp_path: Path) -> None:
    record = tmp_path / "record"
    (record / "root/etc/systemd/system").mkdir(parents=True)
    (record / "record.json").write_text(
        '{"format": "gpuiso-host/1", "captured": "2026-01-01T00:00:00Z", "kernel": "6.12", "cgroup_mode": "unified"}'
    )
    (record / "root/etc/systemd/system/a.service").write_text("[Service]\nExecStart=/bin/true\n")
    options = ["rules", "unit", "a", "--policy", policy, "--from", str(record)]
    assert "\nDeviceAllow=/dev/char/195:0 rw\n" in run(capsys, *options).out
    made = run(capsys, *options, "--json")
    check_schema(made.json, "rules-unit")
    assert made.json["path"] == "/etc/systemd/system/a.service.d/50-gpuiso.conf"
    assert run(capsys, *options, "--write").code == 2
