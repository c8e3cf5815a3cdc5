# SPDX-License-Identifier: Apache-2.0
"""scripts/setup, run on a small project of its own: what it makes, when it does nothing, what it repairs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support import REPOSITORY, make_fake_tree

# A build back end without requirements, so that pip needs no package index.
BACKEND = """
import zipfile

WHEEL = "Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
METADATA = "Metadata-Version: 2.1\\nName: gpuiso\\nVersion: 1\\nProvides-Extra: dev\\n"


def build_editable(directory, config_settings=None, metadata_directory=None):
    name = "gpuiso-1-py3-none-any.whl"
    files = {
        "gpuiso.py": "def main():\\n    print('here')\\n",
        "gpuiso-1.dist-info/METADATA": METADATA,
        "gpuiso-1.dist-info/WHEEL": WHEEL,
        "gpuiso-1.dist-info/entry_points.txt": "[console_scripts]\\ngpuiso = gpuiso:main\\n",
    }
    record = "".join(f"{path},,\\n" for path in [*files, "gpuiso-1.dist-info/RECORD"])
    with zipfile.ZipFile(f"{directory}/{name}", "w") as wheel:
        for path, text in {**files, "gpuiso-1.dist-info/RECORD": record}.items():
            wheel.writestr(path, text)
    return name
"""
PYPROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]

[project]
name = "gpuiso"
version = "1"
optional-dependencies = {dev = []}
scripts = {gpuiso = "gpuiso:main"}
"""


def checkout(directory: Path) -> Path:
    """A project that holds only what scripts/setup needs."""
    make_fake_tree(directory, {"pyproject.toml": PYPROJECT, "backend.py": BACKEND, "scripts": None})
    shutil.copy(REPOSITORY / "scripts/setup", directory / "scripts/setup")
    return directory


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return checkout(tmp_path / "checkout")


@pytest.fixture(scope="module")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkout(tmp_path_factory.mktemp("made") / "checkout")


@pytest.fixture
def made(made_once: Path) -> Path:
    """A project that is set up, and set up again for each test that took something from it."""
    says(setup(made_once))
    return made_once


def setup(project: Path, level: str = "run", **environ: str) -> subprocess.CompletedProcess[str]:
    base = {key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "PYTHON", "VIRTUAL_"))}
    return subprocess.run(
        [project / "scripts/setup", level],
        env={**base, "PYTHON": sys.executable, **environ},
        capture_output=True,
        text=True,
        check=False,
    )


def says(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stderr


def command_works(project: Path) -> bool:
    done = subprocess.run([project / ".venv/bin/gpuiso"], capture_output=True, text=True, check=False)
    return done.stdout == "here\n"


def test_a_second_run_does_nothing(made: Path) -> None:
    assert command_works(made)
    assert says(setup(made)) == ""


def test_more_is_added_and_covers_less(made: Path) -> None:
    added = says(setup(made, "dev"))
    assert "(dev)" in added
    assert "making" not in added
    assert says(setup(made)) == ""


def test_a_changed_project_is_installed_again(made: Path) -> None:
    with (made / "pyproject.toml").open("a") as pyproject:
        pyproject.write("# changed\n")
    again = says(setup(made))
    assert "installing gpuiso" in again
    assert "making" not in again


def test_an_interrupted_setup_is_made_anew(project: Path) -> None:
    starting = subprocess.Popen(
        [project / "scripts/setup", "run"],
        env={**os.environ, "PYTHON": sys.executable},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with starting:
        assert starting.stderr is not None
        assert "making .venv" in starting.stderr.readline()
        os.killpg(starting.pid, signal.SIGKILL)
    assert "making .venv" in says(setup(project))
    assert command_works(project)


@pytest.mark.parametrize("lost", ["bin/python", "bin/gpuiso", "lib"])
def test_a_damaged_environment_is_repaired(made: Path, lost: str) -> None:
    victim = made / ".venv" / lost
    if victim.is_dir():
        shutil.rmtree(victim)
    else:
        victim.unlink()
    assert "installing gpuiso" in says(setup(made))
    assert command_works(made)


def test_a_moved_checkout_is_set_up_anew(made: Path) -> None:
    moved = made.rename(made.with_name("moved here"))
    try:
        assert "making .venv" in says(setup(moved))
        assert command_works(moved)
    finally:
        moved.rename(made)


def bare_system(directory: Path, commands: Mapping[str, str]) -> str:
    """A PATH with the tools that every system has, and ``commands`` as shell scripts."""
    directory.mkdir()
    for tool in ("sh", "cat", "dirname", "sha256sum", "cut", "rm", "mkdir", "grep", "uname", "env"):
        found = shutil.which(tool)
        assert found is not None
        (directory / tool).symlink_to(found)
    for name, script in commands.items():
        path = directory / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    return str(directory)


def test_without_privilege_missing_packages_are_named(project: Path, tmp_path: Path) -> None:
    path = bare_system(tmp_path / "bin", {"id": "echo 1000", "apt-get": "echo apt-get ran >&2; exit 1"})
    done = setup(project, PATH=path, PYTHON="")
    assert done.returncode == 1
    assert done.stderr == "setup: missing packages, which root can install: python3\n"
    assert not (project / ".venv").exists()


@pytest.mark.parametrize(
    ("manager", "expected"),
    [
        ("apt-get", ["-qq update", "-qq -o Dpkg::Use-Pty=0 install --no-install-recommends shellcheck debootstrap"]),
        ("dnf", ["-q -y install --setopt=install_weak_deps=False ShellCheck debootstrap"]),
    ],
)
def test_root_installs_what_is_missing(project: Path, tmp_path: Path, manager: str, expected: list[str]) -> None:
    log = tmp_path / "log"
    path = bare_system(tmp_path / "bin", {"id": "echo 0", manager: f'echo "$*" >>{log}', "unshare": ""})
    done = setup(project, "lab", PATH=path, PYTHON="none")
    assert log.read_text().splitlines() == expected
    assert done.stderr.splitlines()[-1] == "setup: PYTHON=none is not there, or older than Python 3.11"


def test_a_system_with_an_old_python_gets_a_newer_one_beside_it(project: Path, tmp_path: Path) -> None:
    bin_directory = tmp_path / "bin"
    (tmp_path / "newer").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (tmp_path / "newer").chmod(0o755)
    install = f'case "$*" in *python3.11) mv {tmp_path}/newer {bin_directory}/python3.11 ;; *python3*) exit 100 ;; esac'
    path = bare_system(bin_directory, {"id": "echo 0", "apt-get": install, "python3": "exit 1"})
    (bin_directory / "mv").symlink_to(shutil.which("mv") or "mv")
    assert "installing python3.11\n" in says(setup(project, PATH=path, PYTHON=""))
    assert command_works(project)


def test_an_old_python_is_refused(project: Path, tmp_path: Path) -> None:
    old = bare_system(tmp_path / "bin", {"python3.9": "exit 1"})
    done = setup(project, PYTHON=f"{old}/python3.9")
    assert done.returncode == 1
    assert "older than Python 3.11" in done.stderr


def test_an_unknown_level_is_refused(project: Path) -> None:
    done = setup(project, "everything")
    assert done.returncode == 1
    assert "unknown level 'everything'" in done.stderr
