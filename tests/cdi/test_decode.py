# SPDX-License-Identifier: Apache-2.0
"""How text becomes a spec where YAML, JSON and Go's decoder have a say."""

from __future__ import annotations

import gc

import pytest

from gpuiso.cdi.document import Problem
from gpuiso.cdi.spec import Spec
from gpuiso.cdi.validate import parse_spec, read_spec
from gpuiso.errors import BadInput

HEAD = "cdiVersion: 0.6.0\nkind: vendor.com/gpu\n"
DEVICE = "devices:\n- name: d0\n  containerEdits:\n    env: [A=1]\n"


def accepted(text: str) -> Spec:
    spec, problems = read_spec(text.encode())
    assert problems == []
    assert spec is not None
    return spec


def refused(text: str) -> list[Problem]:
    spec, problems = read_spec(text.encode())
    assert spec is None
    assert problems
    return problems


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("0", "0"),
        ("010", "8"),
        ("0x1F", "31"),
        ("0b11", "3"),
        ("1_000", "1000"),
        ("1.50", "1.5"),
        ("true", "true"),
        ("Yes", "true"),
        ("off", "false"),
        ("'0'", "0"),
        ("!!str 1", "1"),
        ("2001-12-14", "2001-12-14"),
        ("1:0", "1:0"),
        ("1e6", "1e+06"),
    ],
)
def test_a_value_that_is_no_text_becomes_text(written: str, read: str) -> None:
    text = f"{HEAD}devices:\n- name: {written}\n  containerEdits: {{env: [A=1]}}\n"
    if read == "1e+06":
        assert any(read in problem.message for problem in refused(text))
    else:
        assert accepted(text).devices[0].name == read


@pytest.mark.parametrize(
    ("written", "read"), [("438", 438), ("0666", 438), ("0o666", 438), ("438.0", 438), ("null", None)]
)
def test_integers_may_be_written_as_yaml_writes_them(written: str, read: int | None) -> None:
    node = f"    deviceNodes: [{{path: /dev/null, fileMode: {written}}}]\n"
    assert accepted(HEAD + DEVICE + node).devices[0].container_edits.device_nodes[0].file_mode == read


@pytest.mark.parametrize("written", ["'438'", "1.5", "-1", "4294967296", ".inf", "true", "[1]", "{a: 1}", "1e30"])
def test_what_is_no_uint32_is_refused(written: str) -> None:
    node = f"    deviceNodes: [{{path: /dev/null, fileMode: {written}}}]\n"
    (problem,) = refused(HEAD + DEVICE + node)
    assert problem.where == "devices[0].containerEdits.deviceNodes[0].fileMode"
    assert (problem.line, problem.column) == (7, 47)


def test_field_names_match_in_any_case() -> None:
    assert accepted(HEAD.replace("kind", "KIND") + DEVICE.replace("devices", "Devices")).kind == "vendor.com/gpu"


@pytest.mark.parametrize(
    "text",
    [
        HEAD + "kind: vendor.com/gpu\n" + DEVICE,
        HEAD + "Kind: vendor.com/gpu\n" + DEVICE,
        HEAD + DEVICE + "    env: [A=2]\n",
        '{"cdiVersion": "0.6.0", "cdiVersion": "0.6.0", "kind": "vendor.com/gpu", "devices": []}',
    ],
)
def test_a_key_given_twice_is_refused(text: str) -> None:
    assert any("twice" in problem.message for problem in refused(text))


def test_every_problem_is_told_with_its_place() -> None:
    problems = refused(HEAD.replace("0.6.0", "9.9.9") + DEVICE + "    bogus: 1\n- name: 5x-\n  containerEdits: {}\n")
    assert [(p.where, p.line) for p in problems] == [("devices[0].containerEdits", 7)]
    problems = refused(HEAD.replace("0.6.0", "9.9.9") + DEVICE + "- name: 5x-\n  containerEdits: {}\n")
    assert [(p.where, p.line) for p in problems] == [
        ("cdiVersion", 1),
        ("devices[1].name", 7),
        ("devices[1].containerEdits", 8),
    ]


def test_merge_keys_and_aliases_are_followed() -> None:
    text = (
        HEAD + "devices:\n- name: d0\n  containerEdits: &e\n    env: [A=1]\n"
        "- {name: d1, containerEdits: *e}\n- name: d2\n  containerEdits:\n    <<: *e\n"
    )
    assert [device.container_edits.env for device in accepted(text).devices] == [("A=1",)] * 3
    assert any("twice" in p.message for p in refused(text + "    env: [B=1]\n"))


@pytest.mark.parametrize(
    "text",
    [
        "&a {<<: *a}",
        "&a [*a]",
        "devices: &a [*a]",
        "{}: 1",
        "[" * 5000,
        "- " * 5000,
        "*nothing",
        "%YAML 1.2\n---\n" + HEAD + DEVICE,
        HEAD + DEVICE.replace("A=1", "!!int x"),
        HEAD + DEVICE.replace("A=1", "!!binary '*'"),
        HEAD + DEVICE.replace("[A=1]", "A=1"),
        HEAD + "devices: [null]\n",
        HEAD + "devices:\n- name: d0\n  containerEdits: {deviceNodes: [null]}\n",
    ],
)
def test_odd_documents_are_refused_in_a_sentence(text: str) -> None:
    for problem in refused(text):
        assert "\n" not in str(problem)


def test_aliases_of_aliases_do_not_fill_the_memory() -> None:
    strings = "a: &a [" + ",".join(["x"] * 100) + "]\n"
    nodes = "b: &b [" + ",".join(["{path: x, hostPath: x}"] * 300) + "]\n"
    devices = "devices: [" + ",".join(["{name: d, containerEdits: {deviceNodes: *b, env: *a}}"] * 3000) + "]\n"
    assert any("more than" in problem.message for problem in refused(strings + nodes + HEAD + devices))


def test_the_empty_vendor_is_refused_cleanly() -> None:
    (problem,) = refused(HEAD.replace("vendor.com/gpu", "/gpu") + DEVICE)
    assert problem.message == "kind '/gpu' has no vendor"


def test_the_first_problem_becomes_the_error() -> None:
    with pytest.raises(BadInput, match=r"^nv\.yaml:2:7: kind: kind 'gpu' is not vendor/class$"):
        parse_spec((HEAD.replace("vendor.com/", "") + DEVICE).encode(), "nv.yaml")


def test_a_spec_survives_being_written_and_read() -> None:
    text = (
        HEAD.replace("0.6.0", "1.1.0")
        + DEVICE
        + (
            "    deviceNodes: [{path: /dev/a, hostPath: /dev/b, type: c, major: 1, minor: 0, fileMode: 0, uid: 0}]\n"
            "    netDevices: [{hostInterfaceName: e, name: n}]\n"
            "    hooks: [{hookName: prestart, path: /h, args: [a], env: [B=1], timeout: 0}]\n"
            "    mounts: [{hostPath: /a, containerPath: /b, type: bind, options: [ro]}]\n"
            "    intelRdt: {closID: c, l3CacheSchema: l, memBwSchema: m, schemata: [s], enableMonitoring: true}\n"
            "    additionalGids: [0, 5]\n  annotations: {k: v}\nannotations: {k: 1}\n"
        )
    )
    import json

    spec = accepted(text)
    assert accepted(json.dumps(spec.to_document())) == spec


def test_a_long_document_is_not_searched_for_garbage() -> None:
    """Every search goes through all of the tree that was made so far: that was most of the time."""
    devices = "".join(f"- name: d{number}\n  containerEdits: {{env: [A=1]}}\n" for number in range(3000))
    searched: list[int] = []

    def search(phase: str, info: dict[str, int]) -> None:
        searched.append(info["generation"])

    gc.collect()
    gc.callbacks.append(search)
    try:
        read_spec(f"{HEAD}devices:\n{devices}".encode())
    finally:
        gc.callbacks.remove(search)
    assert len(searched) <= 2  # at most one begins and ends, when searching is allowed again
    assert gc.isenabled()
    for text in ("devices: [", "{}", HEAD):
        refused(text)
        assert gc.isenabled()
    gc.disable()
    try:
        accepted(HEAD + DEVICE)
        assert not gc.isenabled()
    finally:
        gc.enable()
