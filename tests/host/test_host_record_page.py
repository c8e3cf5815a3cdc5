# SPDX-License-Identifier: Apache-2.0
"""The page about the format and the schemas say what the reader does."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gpuiso.host.record import write_record
from gpuiso.host.recorded import RecordedHost
from tests.host.records import host
from tests.host.test_record import FILES, NODES
from tests.host.test_recorded import SOURCES, TOOLS
from tests.support import REPOSITORY, SHARED, make_fake_tree, needs_shared

PAGE = (REPOSITORY / "docs/host-record.md").read_text()
SCHEMAS = REPOSITORY / "gpuiso/host/schema"
NAMES = {
    "record": "record.json",
    "absent": "absent.json",
    "cgroups": "cgroups.json",
    "probes": "probes.json",
    "nvml": "tools/nvml.json",
    "systemd": "tools/systemd.json",
    "docker": "tools/docker.json",
    "commands": "tools/commands.json",
}


def validator(name: str) -> jsonschema.Draft202012Validator:
    schema = json.loads((SCHEMAS / f"{name}.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def complaints(record: Path) -> list[str]:
    """What the schemas say against a record in a directory."""
    found = [
        f"{file}: {error.message}"
        for name, file in NAMES.items()
        if (record / file).exists()
        for error in validator(name).iter_errors(json.loads((record / file).read_text()))
    ]
    nodes = (record / "nodes.jsonl").read_text().splitlines() if (record / "nodes.jsonl").exists() else []
    check = validator("node")
    return found + [error.message for line in nodes if line.strip() for error in check.iter_errors(json.loads(line))]


def test_every_file_of_the_format_has_a_schema() -> None:
    assert {path.name for path in SCHEMAS.iterdir()} == {f"{name}.schema.json" for name in (*NAMES, "node")}


@pytest.fixture
def example(tmp_path: Path) -> Path:
    """The record of the page's section "An example"."""
    section = PAGE.split("## An example")[1].split("\n## ")[0]
    files = dict(re.findall(r"^`([^`]+)`:\n\n```\w*\n(.*?)^```", section, re.MULTILINE | re.DOTALL))
    assert len(files) == 4
    return make_fake_tree(tmp_path, files)


def test_the_example_of_the_page(example: Path) -> None:
    found = RecordedHost(str(example))
    assert found.lstat("/dev/nvidia-uvm") is None
    assert found.lstat("/dev/nvidia0") is not None
    assert found.pids() == (1, 4242)
    node = found.stat("/proc/4242/root/dev/nvidia0")
    assert node is not None
    assert (node.major, node.minor, node.mode) == (195, 0, 0o666)
    assert found.lstat("/proc/4242/root/dev/nvidia-uvm") is None
    assert "GPU-98b0e715" in (found.text("/proc/driver/nvidia/gpus/0000:01:00.0/information") or "")
    assert complaints(example) == []


def test_json_of_the_page_fits_the_schemas() -> None:
    cgroups = PAGE.split("## cgroups.json")[1].split("```json\n")[1].split("```")[0]
    assert not list(validator("cgroups").iter_errors(json.loads(cgroups)))
    probes = PAGE.split("## probes.json")[1].split("`")[1]
    assert not list(validator("probes").iter_errors(json.loads(probes)))
    systemd = PAGE.split("**systemd.json**: `")[1].split("`")[0]
    assert not list(validator("systemd").iter_errors(json.loads(systemd)))


def test_limits_of_the_page() -> None:
    from gpuiso.host import archive, record_json, record_nodes

    limits = PAGE.split("## Limits")[1].split("\n## ")[0]
    assert f"{archive.MAX_TOTAL >> 20} MiB, {archive.MAX_MEMBERS:,} members" in limits
    assert f"{archive.MAX_FILE >> 20} MiB; JSON {record_json.MAX_JSON >> 20} MiB" in limits
    assert f"`nodes.jsonl` {record_nodes.MAX_LINE >> 20} MiB" in limits


@needs_shared
def test_the_h200_record_fits_the_schemas() -> None:
    assert SHARED is not None
    assert complaints(SHARED / "hosts/h200-x4") == []


def test_written_records_fit_the_schemas(tmp_path: Path) -> None:
    source = host(tmp_path / "source", FILES, NODES)
    assert complaints(tmp_path / "source") == []
    write_record(source, str(tmp_path / "copy"))
    assert complaints(tmp_path / "copy") == []


# What is no JSON or breaks a bound, no schema sees; that an errno exists and a path stands once, none can say.
BEYOND = re.compile(r"JSON|UTF-8|not usable|twice|longer than|larger|nested|errno|64 parts|ctime|xml|document")


@pytest.mark.parametrize(
    ("file", "content"),
    [case[:2] for case in (*SOURCES, *TOOLS) if BEYOND.search(case[-1]) is None and not case[0].endswith(".xml")],
)
def test_the_schemas_refuse_what_the_reader_refuses(file: str, content: Any) -> None:
    name = next((name for name, known in NAMES.items() if known == file), "node")
    text = content if isinstance(content, str) else json.dumps(content)
    texts = text.split("\n") if name == "node" else [text]
    values = [json.loads(text) for text in texts if text.strip()]
    assert [error for value in values for error in validator(name).iter_errors(value)]
