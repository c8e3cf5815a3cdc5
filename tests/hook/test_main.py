# SPDX-License-Identifier: Apache-2.0
"""The hook as a process: what it takes, what it refuses, what it says, and what it imports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpuiso.hook.state import STATE_LIMIT
from gpuiso.hookset.files import modules
from tests.hook.parts import make_bundle, run_hook, state_document
from tests.support import REPOSITORY

# What a Python started with -IS imports by itself is not ours to choose.
OS = {"_collections_abc", "_stat", "genericpath", "os", "os.path", "posixpath", "stat"}
BUDGET = OS | {"__future__", "_ctypes", "_json", "_struct", "ctypes", "ctypes._endian", "errno", "struct", "types"}


def fails(*arguments: str, stdin: bytes | int | None, env: dict[str, str] | None = None) -> str:
    """What the hook says when it ends with 1: one line."""
    done = run_hook(*arguments, stdin=stdin, env=env)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("gpuiso-hook: ")
    return done.stderr.removeprefix("gpuiso-hook: ").rstrip("\n")


def state(bundle: Path | str = "/b", **more: object) -> bytes:
    return json.dumps(state_document(Path(bundle), **more)).encode()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "the state on standard input is empty"),
        (b"{", "the state on standard input is no JSON: "),
        (b"}", "the state on standard input is no JSON"),
        (b"[]", "the state on standard input is no JSON object"),
        (b"{} {}", "the state on standard input goes on after its end"),
        (b"\xff", "the state on standard input is no UTF-8"),
        (b"[" * 200_000, "the state on standard input is nested too deep"),
        (b'{"a":' * 200_000, "the state on standard input is nested too deep"),
        (b'{"id": ' + b"9" * 5000 + b"}", "the state on standard input is no JSON: "),
        (b" " * (64 << 20), f"the state on standard input is longer than {STATE_LIMIT} bytes"),
        (b"{}", "the state's id is missing"),
        (b'{"id": 7, "bundle": "/b"}', "the state's id is no text"),
        (b'{"id": "", "bundle": "/b"}', "the state names no container: id is empty"),
        (b'{"id": "c"}', "the state's bundle is missing"),
        (b'{"id": "c", "bundle": "b"}', "the state's bundle is no absolute path"),
        (b'{"id": "c\\u0000", "bundle": "/b"}', "the state's id holds a NUL"),
        (b'{"id": "c", "bundle": "/b", "pid": "1"}', "the state's pid is no process number"),
        (b'{"id": "c", "bundle": "/b", "pid": -1}', "the state's pid is no process number"),
        (b'{"id": "c", "bundle": "/b", "annotations": []}', "the state's annotations are no object"),
        (b'{"id": "c", "bundle": "/b", "annotations": {"gpuiso.gpus": 0}}', "the annotation gpuiso.gpus is no text"),
    ],
)
def test_a_state_that_makes_no_sense(data: bytes, says: str) -> None:
    assert says in fails("createRuntime", stdin=data)


def test_standard_input_may_be_closed_or_something_odd() -> None:
    code = f"import sys; sys.path.insert(0, {str(REPOSITORY)!r}); from gpuiso.hook.main import main; main()"
    closed = subprocess.run(
        ["sh", "-c", 'exec "$0" "$@" <&-', sys.executable, "-IS", "-c", code, "createRuntime"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (closed.returncode, closed.stderr.count("\n")) == (1, 1)
    assert "no state on standard input: Bad file descriptor" in closed.stderr
    with open(os.devnull, "wb") as sink:
        assert "no state on standard input: Bad file descriptor" in fails("createRuntime", stdin=sink.fileno())


@pytest.mark.parametrize(
    "document",
    [
        {"ociVersion": "0.6.0", "id": "c", "bundlePath": "/b", "pid": 1},
        {"ociVersion": "9.9.9", "id": "c", "bundle": "/b", "status": "creating", "new": {"x": [1]}},
        {"ociVersion": None, "id": "c", "bundle": "/b", "pid": None, "annotations": None, "root": 5},
        {"id": "c", "bundle": "/b", "annotations": {"other": 5, "org.x": None}},
    ],
)
def test_states_of_other_versions(document: dict[str, object]) -> None:
    done = run_hook("createRuntime", stdin=json.dumps(document).encode())
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("arguments", [(), ("startContainer",), ("--help",), ("createruntime",)])
def test_only_known_stages(arguments: tuple[str, ...]) -> None:
    assert fails(*arguments, stdin=state()).startswith("usage: gpuiso-hook createRuntime|")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("createRuntime", "--link", "a::/b"), "unknown option '--link'; this stage has --policy, --gpus, --gpu-max"),
        (("createRuntime", "--gpus"), "--gpus needs a value"),
        (("createContainer", "--link", "a"), "--link 'a' is not of the form TARGET::PATH"),
        (("createContainer", "--library", "lib=x"), "--library 'lib' is no absolute path"),
        (("createContainer", "--library", "/lib=a,../b"), "--library: '../b' is no file name"),
        (("createContainer", "--chmod", "9:/dev"), "--chmod: '9' is no mode in octal digits"),
        (("createContainer", "--profile"), "unknown option '--profile'"),
        (("poststop", "x"), "unknown option 'x'; this stage has none"),
    ],
)
def test_options_that_make_no_sense(arguments: tuple[str, ...], says: str) -> None:
    assert f"{arguments[0]} c1: " in fails(*arguments, stdin=state())
    assert says in fails(*arguments, stdin=state())


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (None, "config.json: No such file or directory"),
        ("{", "config.json is no JSON"),
        ('{"a":' * 100_000, "config.json is nested too deep"),
        ("{}", "config.json: root.path is missing"),
        ('{"root": []}', "config.json: root.path is missing"),
        ('{"root": {"path": 5}}', "config.json: root.path is missing"),
        ('{"root": {"path": "none"}}', "none: No such file or directory"),
    ],
)
def test_a_bundle_that_makes_no_sense(tmp_path: Path, config: str | None, says: str) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    assert says in fails("createContainer", stdin=state(tmp_path))


def test_a_config_may_be_large_but_not_endless(tmp_path: Path) -> None:
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(64 << 20)
    assert "is longer than 16777216 bytes" in fails("createContainer", stdin=state(tmp_path))
    (tmp_path / "config.json").unlink()
    os.mkfifo(tmp_path / "config.json")
    assert "config.json is no regular file" in fails("createContainer", stdin=state(tmp_path))


def test_what_a_container_chose_cannot_steer_a_terminal_or_forge_lines() -> None:
    said = fails("createRuntime", stdin=state(id="a\nMESSAGE=b\x1b[2J", annotations={"gpuiso.x\r": "1"}))
    assert "\x1b" not in said
    assert "a\ufffdMESSAGE=b\ufffd[2J" in said


@pytest.mark.parametrize("name", ["LD_PRELOAD", "LD_AUDIT", "LD_LIBRARY_PATH", "GLIBC_TUNABLES"])
def test_a_definition_without_an_environment_is_found_out(name: str) -> None:
    said = fails("createRuntime", stdin=state(), env={name: "glibc.malloc.check=0" if name[0] == "G" else ""})
    assert said == f"createRuntime: started with {name} set: the hook's definition must give its own env"


def test_the_environment_and_the_current_directory_do_not_matter(tmp_path: Path) -> None:
    """Modules of the names that the hook imports, wherever Python could be told to look."""
    evil = f"open({str(tmp_path / 'ran')!r}, 'w')"
    for name in ("_json.py", "ctypes.py", "errno.py", "sitecustomize.py", "usercustomize.py", "gpuiso.py"):
        (tmp_path / name).write_text(evil)
    env = {
        "PYTHONPATH": str(tmp_path),
        "PYTHONSTARTUP": str(tmp_path / "gpuiso.py"),
        "PYTHONHOME": str(tmp_path),
        "PYTHONUSERBASE": str(tmp_path),
        "PYTHONINSPECT": "1",
        "PATH": str(tmp_path),
        "HOME": str(tmp_path),
    }
    rootfs = make_bundle(tmp_path / "bundle")
    before = os.getcwd()
    os.chdir(tmp_path)
    try:
        done = run_hook("createContainer", "--link", "a::/b", stdin=state(tmp_path / "bundle"), env=env)
    finally:
        os.chdir(before)
    assert (done.returncode, done.stderr) == (0, "")
    assert os.readlink(rootfs / "b") == "a"
    assert not (tmp_path / "ran").exists()


def imported(*arguments: str, stdin: bytes) -> set[str]:
    """The modules that a run of the hook has imported at its end, without those that Python starts with."""
    code = (
        f"import sys; sys.path.insert(0, {str(REPOSITORY)!r}); before = set(sys.modules)\n"
        "from gpuiso.hook.main import run\n"
        "status = run(sys.argv[1:]); print(*sorted(set(sys.modules) - before)); sys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-IS", "-c", code, *arguments], input=stdin, capture_output=True, check=True)
    return set(done.stdout.decode().split())


def test_the_import_budget(tmp_path: Path) -> None:
    make_bundle(tmp_path)
    work = ["--link", "a::/b", "--library", "/lib=liba.so", "--chmod", "755:/", "--no-node-modification"]
    for arguments in (["createContainer", *work], ["createRuntime"], ["prestart"], ["poststop"]):
        found = imported(*arguments, stdin=state(tmp_path))
        assert {name for name in found if not name.startswith("gpuiso")} <= BUDGET, arguments
        assert not [name for name in found if name.startswith(("gpuiso.policy", "gpuiso.devfilter"))]
        assert not {"gpuiso.errors", "gpuiso.kernel.bpf"} & found


def test_the_modules_that_are_shipped_are_those_that_may_be_imported() -> None:
    shipped = set(modules())
    allowed = ("gpuiso/hook/", "gpuiso/kernel/", "gpuiso/devfilter/", "gpuiso/policy/")
    assert {name for name in shipped if not name.startswith(allowed)} == {"gpuiso/__init__.py", "gpuiso/errors.py"}
    assert "gpuiso/hook/dbus.py" in shipped
    assert "gpuiso/policy/parse.py" not in shipped
