# SPDX-License-Identifier: Apache-2.0
"""The specs that people can copy."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpuiso.cdi.lint import lint_spec
from gpuiso.cdi.names import qualified_name
from gpuiso.cdi.rules import faults
from gpuiso.cdi.spec import Spec
from gpuiso.cdi.validate import parse_spec, schema_problems
from gpuiso.cdi.version import minimum_version
from tests.cdi.fake_host import FakeHost, node
from tests.cdi.nvidia_host import char
from tests.support import REPOSITORY

SPECS = sorted((REPOSITORY / "cdi-specs").glob("*.yaml"))
README = (REPOSITORY / "cdi-specs/README.md").read_text(encoding="utf-8")


def parsed(path: Path) -> Spec:
    return parse_spec(path.read_bytes(), path.name)


def test_all_of_them_are_here() -> None:
    assert {path.stem for path in SPECS} == {
        "amd",
        "intel",
        "nvidia-gdrcopy",
        "nvidia-management",
        "nvidia-mig-example",
    }


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_it_is_valid_at_the_lowest_version(path: Path) -> None:
    spec = parsed(path)
    assert list(faults(spec)) == []
    assert list(schema_problems(spec.to_document())) == []
    assert spec.version == minimum_version(spec)


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_nothing_is_said_about_it_where_its_nodes_are(path: Path) -> None:
    spec = parsed(path)
    paths = {node.path for edits in spec.all_edits() for node in edits.device_nodes}
    host = FakeHost([*(char(path, 1, n) for n, path in enumerate(sorted(paths))), node("/dev/dri/by-path", "d")])
    assert list(lint_spec(host, spec)) == []


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_the_readme_names_its_device(path: Path) -> None:
    spec = parsed(path)
    row = re.search(rf"\| \[{re.escape(path.name)}\]\({re.escape(path.name)}\) \| `([^`]+)`", README)
    assert row is not None
    assert row[1] == qualified_name(spec.kind, spec.devices[0].name)
