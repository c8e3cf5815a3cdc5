# SPDX-License-Identifier: Apache-2.0
"""What is not the hook's own stays, whatever place somebody names, and what failed leaves nothing."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from gpuiso import __version__
from gpuiso.errors import BadInput, FailedAndUndone, NotUndone
from gpuiso.hookset import files
from gpuiso.hookset.files import install, remove
from gpuiso.oci.files import replace_file
from tests.cli.command import run
from tests.support import make_fake_tree

OLD = "0.0.9-0123456789ab"
MODULES = {"gpuiso/hook/main.py": "", "gpuiso/hook/__pycache__/main.cpython-311.pyc": ""}


def tree(base: Path) -> dict[str, bytes | None]:
    """Everything below ``base``, but for what is compiled."""
    return {
        str(path.relative_to(base)): path.read_bytes() if path.is_file() else None
        for path in sorted(base.rglob("*"))
        if path.suffix != ".pyc"
    }


def places(base: Path) -> dict[str, Any]:
    return {"path": f"{base}/bin/gpuiso-hook", "library": f"{base}/lib", "definitions": f"{base}/hooks.d"}


def test_other_directories_of_the_library_stay(tmp_path: Path) -> None:
    foreign = {
        "lib/other/file": "",
        "lib/1.0-0123456789ab/main.py": "",
        "lib/1.1-0123456789ab/gpuiso/readme": "",
        "lib/.new-abcdefgh/precious": "",
    }
    ours = {f"lib/{name}/{file}": "" for name in (OLD, ".new-0123abcd") for file in MODULES}
    make_fake_tree(tmp_path, {**foreign, **ours})
    os.mkdir(tmp_path / "lib/2.0-0123456789ab")
    (tmp_path / "lib/3.0-0123456789ab").symlink_to(tmp_path / "lib" / OLD)
    kept = {*(name.split("/")[1] for name in foreign), "2.0-0123456789ab", "3.0-0123456789ab"}
    done = install(sys.executable, **places(tmp_path))
    assert set(os.listdir(tmp_path / "lib")) == {*kept, os.path.basename(str(done.library))}
    gone = remove(**places(tmp_path))
    assert set(os.listdir(tmp_path / "lib")) == kept
    assert gone == (*done.definitions, done.launcher, done.library)


def test_a_library_that_holds_the_launcher(tmp_path: Path) -> None:
    place = {**places(tmp_path), "library": f"{tmp_path}/"}
    done = install(sys.executable, **place)
    assert (done.version, install(sys.executable, **place)) == (__version__, done)
    remove(**place)
    assert sorted(os.listdir(tmp_path)) == ["bin", "hooks.d"]


def test_an_empty_library_that_was_never_ours_stays(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    assert remove(**places(tmp_path)) == ()
    assert (tmp_path / "lib").is_dir()


@pytest.mark.parametrize("text", ["precious", "#!/bin/sh\n", "sys.path.insert(0, '/lib')\n", None])
def test_a_launcher_that_is_not_ours_is_refused(tmp_path: Path, text: str | None) -> None:
    make_fake_tree(tmp_path, {f"lib/{OLD}/{file}": "" for file in MODULES})
    (tmp_path / "bin").mkdir()
    if text is None:
        (tmp_path / "bin/gpuiso-hook").mkdir()
    else:
        (tmp_path / "bin/gpuiso-hook").write_text(text)
    before = tree(tmp_path)
    with pytest.raises(BadInput, match=r"bin/gpuiso-hook: is not gpuiso's hook, and is left alone"):
        install(sys.executable, **places(tmp_path))
    with pytest.raises(BadInput, match=r"bin/gpuiso-hook: is not gpuiso's hook, and is left alone"):
        remove(**places(tmp_path))
    assert tree(tmp_path) == before


@pytest.mark.parametrize("wrong", ["lib", "hooks.d", "bin"])
def test_a_file_where_a_directory_must_be(tmp_path: Path, wrong: str) -> None:
    (tmp_path / wrong).write_text("precious")
    with pytest.raises(BadInput, match=f"{wrong}: is not a directory"):
        install(sys.executable, **places(tmp_path))
    assert tree(tmp_path) == {wrong: b"precious"}


def test_a_definition_that_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "hooks.d/gpuiso-poststop.json").mkdir(parents=True)
    before = tree(tmp_path)
    with pytest.raises(BadInput, match=r"gpuiso-poststop\.json: is not a regular file"):
        install(sys.executable, **places(tmp_path))
    assert tree(tmp_path) == before


def test_modules_of_that_name_that_are_not_ours(tmp_path: Path) -> None:
    done = install(sys.executable, **places(tmp_path))
    remove(**places(tmp_path))
    (Path(str(done.library)) / "empty").mkdir(parents=True)
    before = tree(tmp_path)
    with pytest.raises(BadInput, match="is not what gpuiso puts there"):
        install(sys.executable, **places(tmp_path))
    assert tree(tmp_path) == before


def fail_at(monkeypatch: pytest.MonkeyPatch, end: str, *, forever: bool = False) -> None:
    """The disk is full at a file, once or from then on."""
    failed: list[str] = []

    def failing(path: str, data: bytes, *, mode: int = 0o644) -> None:
        if failed and forever:
            raise FailedAndUndone(f"{path}: cannot be written: full")
        if path.endswith(end) and not failed:
            failed.append(path)
            raise FailedAndUndone(f"{path}: cannot be written: full")
        replace_file(path, data, mode=mode)

    monkeypatch.setattr(files, "replace_file", failing)


@pytest.mark.parametrize("at", ["gpuiso-hook", "gpuiso-createruntime.json", "gpuiso-poststop.json"])
def test_what_failed_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    fail_at(monkeypatch, at)
    with pytest.raises(FailedAndUndone, match="full"):
        install(sys.executable, **places(tmp_path / "a/b"))
    assert tree(tmp_path) == {}


@pytest.mark.parametrize("at", ["gpuiso-hook", "gpuiso-poststop.json"])
def test_what_failed_leaves_the_old_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    install(sys.executable, **places(tmp_path))
    before = tree(tmp_path)
    monkeypatch.setattr(files, "__version__", "9.9")
    fail_at(monkeypatch, at)
    with pytest.raises(FailedAndUndone, match="full"):
        install(sys.executable, **places(tmp_path), always=True)
    assert tree(tmp_path) == before


def test_what_cannot_be_undone_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(sys.executable, **places(tmp_path))
    fail_at(monkeypatch, "gpuiso-poststop.json", forever=True)
    with pytest.raises(NotUndone, match=r"poststop\.json: cannot be written: full; it could not be undone: .*hook: "):
        install(sys.executable, **places(tmp_path))


@pytest.mark.parametrize(
    "arguments",
    [
        *(["install", option, "there"] for option in ("--path", "--library", "--hooks-dir", "--python")),
        *(["install", "--remove", option, ""] for option in ("--path", "--library", "--hooks-dir")),
        ["refresh", "--path", "there"],
        ["inject", "--gpus", "0", "--path", "there", "{}/config.json"],
    ],
)
def test_relative_places_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    named = {option: f"{tmp_path}/{option}" for option in ("--path", "--library", "--hooks-dir")}
    if arguments[0] == "refresh":
        named = {option: f"{tmp_path}/{option}" for option in ("--policies", "--tables", "--cdi-dir")}
    more = [word for pair in named.items() if pair[0] not in arguments for word in pair]
    command = [word.format(tmp_path) for word in arguments]
    refused = run(capsys, "hook", *command, *(more if arguments[0] != "inject" else ()))
    assert (refused.code, refused.out) == (2, "")
    assert "must be an absolute path" in refused.err
    assert os.listdir(tmp_path) == ["config.json"]


@pytest.mark.parametrize(
    "text",
    [
        'sys.path.insert(0, "a',
        "sys.path.insert(0, )",
        "sys.path.insert(0, 'a\\U00ffffff')",
        "sys.path.insert(0, 'a\\d')",
        "sys.path.insert(0, '/\\ud800')",
        "sys.path.insert(0, 'a\\x00b')",
        "sys.path.insert(0, '')",
        "sys.path.insert(0, '/tmp')",
        "sys.path.insert(0, __import__('os'))",
        "sys.path.insert(0, " + 10_000 * "(" + ")",
    ],
)
@pytest.mark.filterwarnings("error")
def test_any_content_can_be_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    file = tmp_path / "f"
    for whole in (text, f"#!/usr/bin/python3 -IS\n{text}\nfrom gpuiso.hook.main import main\n"):
        file.write_text(whole)
        options = ["--path", str(file), "--tables", f"{tmp_path}/none", "--policies", f"{tmp_path}/none"]
        shown = run(capsys, "hook", "show", *options)
        assert (shown.code, shown.err.splitlines()[0]) == (4, f"gpuiso: no hook at {file}")
        assert run(capsys, "hook", "show", *options, "--json").json["path"] is None


def test_a_fifo_is_no_hook(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "f")
    assert run(capsys, "hook", "show", "--path", f"{tmp_path}/f").code == 4
