# SPDX-License-Identifier: Apache-2.0
"""The JSON Schema for editors takes what the parser takes and refuses what can be told without reading texts."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from gpuiso.policy.cgroup_files import FILES, known_file
from gpuiso.policy.document import read_policy
from tests.policy.test_document import WHOLE
from tests.support import REPOSITORY

SCHEMA: dict[str, Any] = json.loads((files("gpuiso.policy") / "schema" / "policy.json").read_text())
EXAMPLES = sorted((REPOSITORY / "examples/policies").glob("*.[yj][as]*"))

GOOD = [
    {"gpuiso": 1},
    {"gpuiso": 1, "default": "allow", "devices": []},
    {"gpuiso": 1, "devices": ["deny a", "allow a *:* rwm", "allow c *:* r # all", " allow\tb 8:0 rw "]},
    {"gpuiso": 1, "devices": ["allow /dev/nvidia*", "allow -/dev/x r", "allow char-nvidia-uvm", "deny -block-7 w"]},
    {"gpuiso": 1, "devices": ["allow gpu 0", "allow -gpu all rw", "deny gpu GPU-98b0", "allow gpu 0000:06:00.0"]},
    {"gpuiso": 1, "devices": ["allow gpu amd:1", "allow mig MIG-98b0 r", "allow mig MIG-GPU-98b0/1/0"]},
    {"gpuiso": 1, "devices": ["allow default-nodes", "allow default-nodes rw"]},
    {"gpuiso": 1, "devices": [{"allow": "gpu 0"}, {"deny": "c 1:3", "access": "w"}, {"allow": "c 1:3 r"}]},
    {"gpuiso": 1, "devices": [{"allow": "a"}, {"allow": "/dev/x", "optional": True}]},
    {"gpuiso": 1, "gpu.max": "max", "gpu.memory.max": "4G", "memory.max": 4096, "pids.max": "max"},
    {"gpuiso": 1, "gpu.max": 50000, "cpu.max": "max 20000", "cpu.weight.nice": -3, "cpu.idle": 0},
    {"gpuiso": 1, "cpuset.cpus": "0-3,8", "cpuset.mems": 0, "io.max": ["8:0 rbps=1"], "io.weight": 100},
    {"gpuiso": 1, "hugetlb.2MB.max": "1G", "cpu.uclamp.min": 50.5, "dmem.max": "drm/x 1G"},
]
BAD: list[Any] = [
    [],
    {},
    {"gpuiso": 2},
    {"gpuiso": 1, "device": []},
    {"gpuiso": 1, "memory.current": 1},
    {"gpuiso": 1, "default": "yes"},
    {"gpuiso": 1, "devices": "allow a"},
    {"gpuiso": 1, "devices": ["permit a"]},
    {"gpuiso": 1, "devices": ["allow c 1:3"]},
    {"gpuiso": 1, "devices": ["allow c 1 r"]},
    {"gpuiso": 1, "devices": ["allow -c 1:3 r"]},
    {"gpuiso": 1, "devices": ["allow gpu first"]},
    {"gpuiso": 1, "devices": ["allow mig 0"]},
    {"gpuiso": 1, "devices": ["allow nvidia0"]},
    {"gpuiso": 1, "devices": ["allow a r"]},
    {"gpuiso": 1, "devices": [{"access": "r"}]},
    {"gpuiso": 1, "devices": [{"allow": "a", "deny": "a"}]},
    {"gpuiso": 1, "devices": [{"allow": "gpu 0 r", "access": "r"}]},
    {"gpuiso": 1, "devices": [{"allow": "gpu 0", "access": "x"}]},
    {"gpuiso": 1, "devices": [{"allow": "gpu 0", "why": "not"}]},
    {"gpuiso": 1, "gpu.max": "half"},
    {"gpuiso": 1, "gpu.memory.max": "4GB"},
    {"gpuiso": 1, "pids.max": -1},
    {"gpuiso": 1, "memory.oom.group": True},
    {"gpuiso": 1, "cpuset.cpus": "all"},
]


def takes(document: Any) -> bool:
    return bool(Draft202012Validator(SCHEMA).is_valid(document))


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["additionalProperties"] is False


@pytest.mark.parametrize("document", GOOD, ids=json.dumps)
def test_good(document: Any) -> None:
    assert takes(document)
    assert read_policy(json.dumps(document), file="x.json")[1] == []


@pytest.mark.parametrize("document", BAD, ids=json.dumps)
def test_bad(document: Any) -> None:
    assert not takes(document)
    assert read_policy(json.dumps(document), file="x.json")[1] != []


def test_yaml() -> None:
    assert takes(yaml.safe_load(WHOLE))
    assert len(EXAMPLES) >= 3
    for example in EXAMPLES:
        assert takes(yaml.safe_load(example.read_text())), example


def test_the_schema_knows_the_files_that_the_parser_knows() -> None:
    own = {"gpuiso", "default", "devices", "gpu.max", "gpu.memory.max"}
    named = set(SCHEMA["properties"]) - own
    assert named == set(FILES)
    assert all(known_file(name) for name in named)
