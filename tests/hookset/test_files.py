# SPDX-License-Identifier: Apache-2.0
"""The hook's program in place: installed, shown, brought up to date and removed, in directories of a test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpuiso.errors import BadInput, NotSupported
from gpuiso.hookset import files
from gpuiso.hookset.files import Installed, install, installed, launcher, remove
from tests.hook.parts import make_bundle, state_document
from tests.support import REPOSITORY


def place(base: Path, python: str = sys.executable) -> Installed:
    return install(python, path=f"{base}/bin/gpuiso-hook", library=f"{base}/lib", definitions=f"{base}/hooks.d")


def test_what_is_installed_runs_by_itself(tmp_path: Path) -> None:
    done = place(tmp_path)
    assert (done.version, done.current) != (None, False)
    assert [os.path.basename(name) for name in done.definitions] == [
        "gpuiso-createruntime.json",
        "gpuiso-poststop.json",
    ]
    rootfs = make_bundle(tmp_path / "bundle")
    state = json.dumps(state_document(tmp_path / "bundle"))
    command = [done.launcher, "createContainer", "--link", "a::/b"]
    ran = subprocess.run(command, input=state, capture_output=True, text=True, env={}, cwd="/", check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert os.readlink(rootfs / "b") == "a"
    # Its modules come from the copy, compiled; nothing is written to it.
    assert done.library is not None
    copies = sorted(str(path.relative_to(done.library)) for path in Path(done.library).rglob("*.py"))
    assert copies == sorted(files.modules())
    assert len(list(Path(done.library).rglob("*.pyc"))) == len(copies)
    assert {path.stat().st_mode & 0o022 for path in Path(done.library).rglob("*")} == {0}


def test_a_second_installation_changes_nothing_and_a_new_version_replaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = place(tmp_path)
    assert place(tmp_path) == first
    monkeypatch.setattr(files, "__version__", "9.9")
    second = place(tmp_path)
    assert (second.version, os.listdir(tmp_path / "lib")) == ("9.9", [os.path.basename(str(second.library))])
    assert first.library != second.library


@pytest.mark.parametrize("spoil", ["empty", "gone", "edited", "compiled", "not compiled"])
def test_a_second_installation_mends_what_was_spoiled(tmp_path: Path, spoil: str) -> None:
    first = place(tmp_path)
    assert first.library is not None
    module = Path(first.library, "gpuiso/hook/state.py")
    (compiled,) = module.parent.glob("__pycache__/state.*.pyc")
    if spoil == "gone":
        module.unlink()
    elif spoil == "not compiled":
        compiled.unlink()
    elif spoil == "compiled":
        compiled.write_bytes(b"")
    else:
        module.write_text("" if spoil == "empty" else f"{module.read_text()}\n")
    assert place(tmp_path) == first
    assert os.listdir(tmp_path / "lib") == [os.path.basename(first.library)]
    done = subprocess.run([first.launcher, "poststop"], input="{}", capture_output=True, text=True, env={}, check=False)
    assert done.stderr == "gpuiso-hook: poststop: the state's id is missing\n"


@pytest.mark.parametrize("content", ["precious", "{}", '{"hook": {"path": "/usr/bin/other", "args": []}}', ""])
def test_a_definition_of_others_is_left_alone(tmp_path: Path, content: str) -> None:
    file = tmp_path / "hooks.d/gpuiso-createruntime.json"
    file.parent.mkdir()
    file.write_text(content)
    with pytest.raises(BadInput, match="is not gpuiso's, and is left alone"):
        place(tmp_path)
    assert os.listdir(tmp_path) == ["hooks.d"]
    with pytest.raises(BadInput, match="is not gpuiso's, and is left alone"):
        remove(path=f"{tmp_path}/bin/gpuiso-hook", library=f"{tmp_path}/lib", definitions=f"{tmp_path}/hooks.d")
    assert file.read_text() == content


def test_what_is_there_is_judged(tmp_path: Path) -> None:
    path, definitions = f"{tmp_path}/bin/gpuiso-hook", f"{tmp_path}/hooks.d"
    nothing = Installed(path, None, None, current=False, definitions=())
    assert installed(path=path, definitions=definitions) == nothing
    done = place(tmp_path)
    assert done.library is not None
    Path(done.library, "gpuiso/hook/main.py").write_text("changed")
    assert not installed(path=path, definitions=definitions).current
    gone = remove(path=path, library=f"{tmp_path}/lib", definitions=definitions)
    assert gone == (*done.definitions, path, f"{tmp_path}/lib")
    assert installed(path=path, definitions=definitions) == nothing
    assert remove(path=path, library=f"{tmp_path}/lib", definitions=definitions) == ()


@pytest.mark.parametrize(
    ("python", "says"),
    [
        ("/none/python3", "No such file"),
        ("/bin/false", "is not the Python 3.11"),
        ("/bin/sh", "is not the Python 3.11"),
        ("/bin/true", "is not the Python 3.11"),
        ("/bin/echo", "is not the Python 3.11"),
    ],
)
def test_a_python_that_cannot_run_it(tmp_path: Path, python: str, says: str) -> None:
    with pytest.raises(NotSupported, match=says):
        place(tmp_path, python)
    assert list(tmp_path.iterdir()) == []


def test_a_python_that_does_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setattr(files, "_LONGEST_PROBE", 0.1)
    with pytest.raises(NotSupported, match="does not end"):
        place(tmp_path, str(program))
    assert list(tmp_path.iterdir()) == [program]


@pytest.mark.parametrize("python", ["python3", "/a b/python3", "/a\nb", "/\udcff", f"/{'x' * 130}"])
def test_a_path_that_cannot_stand_in_a_first_line(python: str) -> None:
    with pytest.raises(NotSupported, match="cannot stand in the first line"):
        launcher(python, "/lib")


def test_the_definitions_beside_the_checkout_are_those_that_are_installed(tmp_path: Path) -> None:
    done = place(tmp_path)
    kept = REPOSITORY / "hooks" / "hooks.d"
    for name in done.definitions:
        text = Path(name).read_text().replace(done.launcher, "/usr/bin/gpuiso-hook")
        assert text == (kept / os.path.basename(name)).read_text()
    assert sorted(os.listdir(kept)) == [os.path.basename(name) for name in done.definitions]
    shown = (REPOSITORY / "hooks" / "gpuiso-hook").read_text()
    assert shown == launcher("/usr/bin/python3", "/usr/lib/gpuiso-hook/VERSION")
