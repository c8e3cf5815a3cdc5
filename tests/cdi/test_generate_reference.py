# SPDX-License-Identifier: Apache-2.0
"""The recorded host, beside what nvidia-ctk 1.20 wrote on it (without its hook programs installed).

Intended differences, and there are no others:

* every device node has ``type: c``, which nvidia-ctk leaves out. A node with type and numbers is complete:
the engine
  makes it in the container even if the host does not have it yet.
"""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from gpuiso.cdi.emit import to_json, to_yaml
from gpuiso.cdi.generate import Generated, Options, generate
from gpuiso.cdi.validate import read_spec
from gpuiso.host import open_host
from tests.support import REPOSITORY, SHARED, needs_shared

RECORD = REPOSITORY / "examples/hosts/h200-x4"
EXPECTED_FILE = REPOSITORY / "tests/data/cdi/nvidia-ctk-h200-x4.yaml"
EXPECTED: dict[str, Any] = yaml.safe_load(EXPECTED_FILE.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def generated() -> Generated:
    return generate(open_host(str(RECORD)), Options(hooks="nvidia"))


@pytest.fixture(scope="module")
def ours(generated: Generated) -> dict[str, Any]:
    """Our document with the intended difference undone."""
    document = generated.spec.to_document()
    for edits in (*(device["containerEdits"] for device in document["devices"]), document["containerEdits"]):
        for node in edits.get("deviceNodes", []):
            assert node.pop("type") == "c"
    return document


def test_version_and_kind(ours: dict[str, Any]) -> None:
    assert (ours["cdiVersion"], ours["kind"]) == (EXPECTED["cdiVersion"], EXPECTED["kind"])


def test_every_device_and_its_nodes(ours: dict[str, Any]) -> None:
    assert len(EXPECTED["devices"]) == 9
    assert ours["devices"] == EXPECTED["devices"]


@pytest.mark.parametrize("part", ["env", "deviceNodes", "mounts", "hooks"])
def test_common_edits(part: str, ours: dict[str, Any]) -> None:
    assert EXPECTED["containerEdits"][part]
    assert ours["containerEdits"][part] == EXPECTED["containerEdits"][part]


def test_nothing_else_is_there(ours: dict[str, Any]) -> None:
    assert ours.keys() == EXPECTED.keys()
    assert ours["containerEdits"].keys() == EXPECTED["containerEdits"].keys()


def test_there_is_nothing_to_complain_about(generated: Generated) -> None:
    assert generated.messages == ()


def test_without_hooks_all_else_stays(generated: Generated) -> None:
    bare = generate(open_host(str(RECORD)), Options(hooks="none")).spec
    assert bare.container_edits.hooks == ()
    assert bare.container_edits.mounts == generated.spec.container_edits.mounts
    assert bare.devices == generated.spec.devices


@pytest.mark.parametrize("write", [to_yaml, to_json])
def test_what_is_written_reads_back(write: Any, generated: Generated) -> None:
    assert read_spec(write(generated.spec).encode()) == (generated.spec, [])


@needs_shared
def test_the_copy_is_the_collected_file() -> None:
    assert SHARED is not None
    assert EXPECTED_FILE.read_bytes() == (SHARED / "hosts/h200-x4/expected/nvidia-ctk-cdi-generate.yaml").read_bytes()
