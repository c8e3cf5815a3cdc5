# SPDX-License-Identifier: Apache-2.0
"""The wheel holds all of the package, and only it."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import gpuiso
from tests.project.source import project_files
from tests.support import REPOSITORY


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.Path:
    """The built wheel, opened."""
    target = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(target)]
    subprocess.run(build, cwd=REPOSITORY, check=True, capture_output=True)
    (built,) = target.glob("*.whl")
    return zipfile.Path(built)


def names_in(wheel: zipfile.Path) -> set[str]:
    return {name for name in wheel.root.namelist() if not name.endswith("/")}


def test_wheel_holds_the_package_with_its_data(wheel: zipfile.Path) -> None:
    expected = {str(path) for path in project_files() if path.parts[0] == "gpuiso"}
    assert {path for path in expected if path.endswith(".json")}, "the package has no JSON schema"
    assert {name for name in names_in(wheel) if not name.startswith("gpuiso-")} == expected


def test_wheel_names_itself(wheel: zipfile.Path) -> None:
    information = wheel / f"gpuiso-{gpuiso.__version__}.dist-info"
    assert (information / "licenses" / "LICENSE").read_text() == Path(REPOSITORY, "LICENSE").read_text()
    assert "gpuiso = gpuiso.cli.main:main" in (information / "entry_points.txt").read_text()
    metadata = (information / "METADATA").read_text()
    assert f"Version: {gpuiso.__version__}\n" in metadata
    assert "Requires-Python: >=3.11\n" in metadata
