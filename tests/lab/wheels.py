# SPDX-License-Identifier: Apache-2.0
"""The checkout's dependencies for the python3 of an image.

A virtual environment belongs to the interpreter that made it, so a lab gets a plain directory of wheels for its own
Python instead, and PYTHONPATH.
"""

from __future__ import annotations

import hashlib
import platform
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from tests.lab.cache import build_once
from tests.lab.errors import LabError
from tests.support import REPOSITORY

# What the test suite itself imports, so that tests of the checkout can run in a lab.
TEST_PACKAGES = ["hypothesis>=6.100", "pytest>=8.3"]


def site_directory(python: str) -> Path:
    """A directory of the project's dependencies for ``MAJOR.MINOR``, installed first if the cache lacks it."""
    return build_once(key(python), lambda directory: _install(directory, python, _wanted()))


def key(python: str) -> str:
    """Name of the directory in the cache."""
    return f"site-{python}-{hashlib.sha256(' '.join(_wanted()).encode()).hexdigest()[:12]}"


def scripts() -> dict[str, str]:
    """The project's commands: ``module:function`` by name."""
    return dict(_project().get("scripts", {}))


def _wanted() -> list[str]:
    return [*_project()["dependencies"], *TEST_PACKAGES]


def _project() -> dict[str, Any]:
    with (REPOSITORY / "pyproject.toml").open("rb") as file:
        project: dict[str, Any] = tomllib.load(file)["project"]
    return project


def _install(directory: Path, python: str, wanted: list[str]) -> None:
    machine = platform.machine()
    command = [
        *[sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"],
        *["--target", str(directory), "--python-version", python, "--implementation", "cp"],
        *["--only-binary", ":all:", "--root-user-action", "ignore"],
        *["--platform", f"manylinux_2_28_{machine}", "--platform", f"manylinux2014_{machine}"],
        *wanted,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LabError(f"pip cannot install the lab's packages for Python {python}:\n{done.stderr[-1500:]}")
