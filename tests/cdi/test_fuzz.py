# SPDX-License-Identifier: Apache-2.0
"""Whatever the text, there is a verdict; and nothing is accepted that the JSON Schema forbids.

``GPUISO_FUZZ_EXAMPLES`` sets how many documents each test makes (default 500).
"""

from __future__ import annotations

import copy
import json
import os
from typing import Any

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuiso.cdi.cache import Cache, CachedDevice, SpecFile
from gpuiso.cdi.inject import inject
from gpuiso.cdi.validate import read_spec, schema_problems
from gpuiso.errors import GpuisoError
from tests.cdi.fake_host import FakeHost, node

EXAMPLES = int(os.environ.get("GPUISO_FUZZ_EXAMPLES", "500"))
thorough = settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])

HOST = FakeHost([node("/dev/null", "c", mode=0o666, major=1, minor=3), node("/etc/passwd")])

words = st.sampled_from(
    ["", "A=1", "=", "/dev/null", "/etc/passwd", "a/b", "0", "d0", "c", "rwm", "none", "prestart", "v0.6.0", "-", "é"]
)
scalars = st.none() | st.booleans() | st.integers(-2, 2**33) | st.floats() | words | st.text(max_size=4)
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3), max_leaves=6
)
texts = st.lists(words, max_size=3)


def record(required: dict[str, Any], optional: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(required, optional=optional)


nodes = record(
    {"path": st.sampled_from(["/dev/null", "/dev/x", "/etc/passwd"])},
    {
        "hostPath": words,
        "type": st.sampled_from(["", "c", "b", "u", "p"]),
        "major": st.integers(-1, 300),
        "minor": st.integers(-1, 300),
        "fileMode": st.integers(0, 0o7777),
        "permissions": st.sampled_from(["", "r", "rwm", "mm"]),
        "uid": st.integers(0, 5),
        "gid": st.integers(0, 5),
    },
)
hooks = record(
    {"hookName": st.sampled_from(["prestart", "createContainer", "poststop"]), "path": st.just("/h")},
    {"args": texts, "env": st.just(["A=1"]), "timeout": st.integers(-1, 3)},
)
mounts = record(
    {"hostPath": st.sampled_from(["/a", "b"]), "containerPath": st.sampled_from(["/x/y", "//", "/x/", "x"])},
    {"type": words, "options": texts},
)
rdt = record({}, {"closID": words, "schemata": texts, "enableMonitoring": st.booleans()})
net = record({"hostInterfaceName": st.sampled_from("ab"), "name": st.sampled_from("ab")}, {})
edits = record(
    {"env": st.just(["A=1", "B=2"])},
    {
        "deviceNodes": st.lists(nodes, max_size=2),
        "hooks": st.lists(hooks, max_size=2),
        "mounts": st.lists(mounts, max_size=3),
        "netDevices": st.lists(net, max_size=2),
        "intelRdt": rdt,
        "additionalGids": st.lists(st.integers(0, 3), max_size=3),
    },
)
devices = record(
    {"name": st.sampled_from(["d0", "d1", "0", "0:1"]), "containerEdits": edits}, {"annotations": st.just({"k": "v"})}
)
specs = record(
    {
        "cdiVersion": st.sampled_from(["0.3.0", "0.6.0", "0.7.0", "1.1.0", "v1.1.0", "1.2.0"]),
        "kind": st.sampled_from(["vendor.com/gpu", "v/g.pu", "/gpu", "v/"]),
        "devices": st.lists(devices, min_size=1, max_size=3),
    },
    {"containerEdits": edits, "annotations": st.just({"k": "v"})},
)


@st.composite
def spoiled(draw: st.DrawFn) -> Any:
    """A plausible spec in which one value somewhere is anything at all, or has gone."""
    # Strategies hand out the same constants again and again; what is changed must be a copy.
    document = copy.deepcopy(draw(specs))
    place: Any = document
    while isinstance(place, dict | list) and place:
        key = draw(st.sampled_from(sorted(place))) if isinstance(place, dict) else draw(st.integers(0, len(place) - 1))
        if not isinstance(place[key], dict | list) or not place[key] or draw(st.booleans()):
            change = draw(st.sampled_from(["replace", "drop", "add"]))
            if change == "replace":
                place[key] = draw(anything)
            elif change == "drop":
                del place[key]
            elif isinstance(place, dict):
                place[draw(words)] = draw(anything)
            break
        place = place[key]
    return document


def check(data: bytes) -> None:
    spec, problems = read_spec(data)
    assert (spec is None) == bool(problems)
    if spec is None:
        assert all(str(problem) and "\n" not in str(problem) for problem in problems)
        return
    document = spec.to_document()
    assert list(schema_problems(document)) == []
    again, _ = read_spec(json.dumps(document, ensure_ascii=False).encode())
    assert again == spec


@thorough
@given(spoiled(), st.booleans())
def test_spoiled_specs(document: Any, as_json: bool) -> None:
    text = json.dumps(document) if as_json else yaml.safe_dump(document, allow_unicode=True)
    check(text.encode("utf-8", "surrogatepass"))


@thorough
@given(anything)
def test_any_values(document: Any) -> None:
    check(yaml.safe_dump(document).encode("utf-8", "surrogatepass"))


@thorough
@given(st.binary(max_size=200) | st.text(alphabet="{}[]:,-&*!|>'\"%@`#?\n\t ad01.~<", max_size=60).map(str.encode))
def test_any_bytes(data: bytes) -> None:
    check(data)


configs = record(
    {},
    {
        "process": record({}, {"env": texts, "user": record({}, {"uid": st.integers(0, 2)})}),
        "mounts": st.lists(record({}, {"destination": words}), max_size=2),
        "linux": record({}, {"devices": st.lists(record({}, {"path": words}), max_size=2), "resources": st.just({})}),
        "hooks": st.just({"prestart": [{"path": "/x"}]}),
        "x-unknown": st.just({"kept": True}),
    },
)


@thorough
@given(specs, configs)
def test_injection_edits_a_copy_or_says_why_not(document: Any, config: Any) -> None:
    spec, _ = read_spec(json.dumps(document).encode())
    if spec is None:
        return
    file = SpecFile("s.yaml", 0, spec)
    names = {f"{spec.kind}={device.name}": device for device in spec.devices}
    cache = Cache((), (file,), {name: CachedDevice(name, device, file) for name, device in names.items()}, (), {}, {})
    before = copy.deepcopy(config)
    try:
        edited = inject(HOST, cache, config, names)
    except GpuisoError:
        assert config == before
        return
    assert edited["process"]["env"][-1] in ("A=1", "B=2")
    assert edited.get("x-unknown") == config.get("x-unknown")
    json.dumps(edited)
    assert config == before
