# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuiso.policy.document import MOST_CHARACTERS, Document, parse_policy, read_policy
from gpuiso.policy.limits import GpuMax
from gpuiso.policy.place import BadPolicy, bare_message
from gpuiso.policy.statement import GpuName, NodeSet, Numbers, Path, Statement
from gpuiso.policy.yaml_tree import MOST_NODES

WHOLE = """\
gpuiso: 1
default: deny
devices:
  - allow default-nodes   # null and its like
  - {allow: gpu 0, access: rw}
  - deny: -/dev/nvidia-uvm-tools
  - {deny: /dev/nvidia9, optional: true}
  - "allow c 1:3 r"
gpu.max: 50000 100000
gpu.memory.max: 20G
memory.max: 1073741824
cpu.max: "max"
io.max:
  - "8:0 rbps=1048576 wiops=max"
  - 8:16 wbps=1
hugetlb.2MB.max: 0
cpuset.cpus: 0-3,8
"""


def test_a_whole_policy() -> None:
    document = parse_policy(WHOLE, file="gpu.yaml")
    assert document == Document(
        statements=(
            Statement(True, NodeSet("default-nodes")),
            Statement(True, GpuName("0"), "rw"),
            Statement(False, Path("/dev/nvidia-uvm-tools"), optional=True),
            Statement(False, Path("/dev/nvidia9"), optional=True),
            Statement(True, Numbers("c", 1, 3), "r"),
        ),
        default_allow=False,
        gpu_max=GpuMax(50_000, 100_000),
        gpu_memory_max=20 << 30,
        files={
            "memory.max": ("1073741824",),
            "cpu.max": ("max 100000",),
            "io.max": ("8:0 rbps=1048576 wiops=max", "8:16 wbps=1"),
            "hugetlb.2MB.max": ("0",),
            "cpuset.cpus": ("0-3,8",),
        },
    )
    assert document.statements is not None
    assert [(s.place.line, s.place.column) for s in document.statements] == [
        (4, 11),
        (5, 13),
        (6, 12),
        (7, 12),
        (8, 12),
    ]
    assert [str(s.place) for s in document.statements[:2]] == [
        "gpu.yaml:4: allow default-nodes",
        "gpu.yaml:5: allow gpu 0 rw",
    ]
    assert document.places["gpu.max"].line == 9


def test_what_is_not_given_is_none() -> None:
    assert parse_policy("gpuiso: 1") == Document()
    assert parse_policy("gpuiso: 1\ndevices: []").statements == ()
    assert parse_policy("deny a") == Document((Statement(False, Numbers("a")),))


def test_json_with_tabs() -> None:
    text = json.dumps({"gpuiso": 1, "devices": ["deny a", {"allow": "gpu 0"}], "pids.max": "max"}, indent="\t")
    document = parse_policy(text)
    assert [str(statement) for statement in document.statements or ()] == ["deny a", "allow gpu 0 rwm"]
    assert document.files == {"pids.max": ("max",)}


def test_an_alias_stands_for_its_anchor() -> None:
    text = "gpuiso: 1\nmemory.high: &size 4G\nmemory.max: *size\n"
    assert parse_policy(text).files == {"memory.high": ("4294967296",), "memory.max": ("4294967296",)}


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("", None, None, "neither rules nor a document: nothing but comments"),
        ("# x\n\n", None, None, "neither rules nor a document: nothing but comments"),
        ("---\n- allow a", 2, 1, "a policy is a mapping of keys to values, not a list"),
        ("--- x", 1, 5, "a policy is a mapping of keys to values, not a text"),
        ("devices: []", 1, 1, "the key gpuiso is missing"),
        ("gpuiso: 2", 1, 9, "version '2' of policies is not known; this gpuiso reads 1"),
        ("gpuiso: 1\ngpuiso: 1", 2, 1, "gpuiso is given twice, first in line 1"),
        ("gpuiso: 1\nmemory.mx: 1", 2, 1, "unknown key 'memory.mx'"),
        ("gpuiso: 1\n[a]: 1", 2, 1, "a key is a word, not a list"),
        ("gpuiso: 1\n<<: {pids.max: 1}", 2, 1, "unknown key '<<'"),
        ("gpuiso: 1\ndevices:", 2, 9, "devices is a list of rules, not a text"),
        ("gpuiso: 1\ndevices: {allow: a}", 2, 10, "devices is a list of rules, not a mapping"),
        ("gpuiso: 1\ndevices: [[allow a]]", 2, 11, "a rule is a line or a mapping, not a list"),
        ("gpuiso: 1\ndevices:\n  - allow gpu x", 3, 15, "expected an index, a UUID"),
        ("gpuiso: 1\ndevices:\n  - 'allow gpu x'", 3, 16, "expected an index, a UUID"),
        ("gpuiso: 1\ndevices:\n  - &r allow gpu x", 3, 5, "expected an index, a UUID"),
        ("gpuiso: 1\ndevices:\n  - allow\n    gpu x", 3, 5, "expected an index, a UUID"),
        ("gpuiso: 1\ndevices: [{allow: a, deny: a}]", 2, 11, "a rule has one of allow and deny"),
        ("gpuiso: 1\ndevices: [{access: r}]", 2, 11, "a rule has one of allow and deny"),
        ("gpuiso: 1\ndevices: [{allow: a, when: now}]", 2, 22, "a rule has allow or deny, access and optional; not"),
        ("gpuiso: 1\ndevices: [{allow: [a]}]", 2, 19, "allow: expected a text, not a list"),
        ("gpuiso: 1\ndevices: [{allow: a, allow: a}]", 2, 22, "allow is given twice"),
        ("gpuiso: 1\ndevices: [{allow: /d, access: q}]", 2, 31, "unknown access 'q'"),
        ("gpuiso: 1\ndevices: [{allow: /d r, access: r}]", 2, 22, "the access is given twice"),
        ("gpuiso: 1\ndevices: [{allow: /d, optional: yes}]", 2, 33, "optional: expected true or false, not 'yes'"),
        ("gpuiso: 1\ndevices: [{allow: c 1:3 r, optional: true}]", 2, 19, "- is for what this host may lack"),
        ("gpuiso: 1\ndefault: true", 2, 10, "expected allow or deny, not 'true'"),
        ("gpuiso: 1\ngpu.max: [1, 2]", 2, 10, "expected one value, not a list"),
        ("gpuiso: 1\ngpu.max:", 2, 9, "a value is missing"),
        ("gpuiso: 1\npids.max: !!int 4", 2, 11, "the tag tag:yaml.org,2002:int has no meaning in a policy"),
        ("gpuiso: 1\npids.max: *x", 2, 11, "*x does not stand for anything that came before"),
        ("gpuiso: &x [*x]", 1, 13, "*x does not stand for anything that came before"),
        ("gpuiso: 1\n---\ngpuiso: 1", 2, 1, "a second document: a policy is one"),
        ("gpuiso: ]", 1, 9, "not YAML: "),
        ("gpuiso: 1\n\tx: 1", 2, 1, "not YAML: "),
        ("gpuiso: 1\x00", 1, 10, "the character '\\x00' cannot stand in a policy"),
        ('gpuiso: 1\ndmem.max: "a\\0b 4G"', 2, 12, "holds a character that cannot stand in a value"),
        ("gpuiso: " + "[" * 40, 1, 25, "nested more than 16 deep"),
    ],
)
def test_errors(text: str, line: int | None, column: int | None, message: str) -> None:
    with pytest.raises(BadPolicy) as caught:
        parse_policy(text, file="gpu.yaml")
    error = caught.value.errors[0]
    assert bare_message(error).startswith(message) or message in error.message
    assert (error.line, error.column) == (line, column)


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("memory.limit_in_bytes", "did you mean memory.max?"),
        ("devices.allow", "did you mean devices?"),
        ("cpu.shares", "did you mean cpu.weight?"),
        ("gpu.mx", "did you mean gpu.max?"),
        ("cgroup.procs", "docs/policy.md lists what a policy may set"),
    ],
)
def test_an_unknown_key_gets_a_hint(key: str, hint: str) -> None:
    _, errors = read_policy(f"gpuiso: 1\n{key}: 1\n")
    assert [error.hint for error in errors] == [hint]


def test_all_errors_in_order() -> None:
    text = "gpuiso: 1\npids.max: x\ndevices: [allow y, allow a]\nfoo: 1\ngpu.max: 0\n"
    document, errors = read_policy(text)
    assert [error.line for error in errors] == [2, 3, 4, 5]
    assert document.statements == (Statement(True, Numbers("a")),)


def test_what_is_too_much() -> None:
    assert "longer than" in read_policy("a" * (MOST_CHARACTERS + 1))[1][0].message
    many = "gpuiso: 1\ndevices: [" + "a," * (MOST_NODES + 1) + "]"
    assert f"more than {MOST_NODES} values" in read_policy(many)[1][0].message
    # Aliases of aliases that would stand for 10^9 values.
    bomb = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{new}: &{new} [{','.join([f'*{old}'] * 10)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
    )
    assert read_policy(bomb + "gpuiso: 1\ndevices: *i\n")[1]


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("- a", "expected allow or deny, not '-'"),
        ("permit c 1:3 r", "expected allow or deny, not 'permit'"),
        ("c 1:3 r", "expected allow or deny, not 'c'"),
        ("Devices:\n - allow a", "unknown key 'Devices'"),
        ('"devices" : []', "the key gpuiso is missing"),
    ],
)
def test_rules_and_documents_are_told_apart(text: str, first: str) -> None:
    assert first in " ".join(error.message for error in read_policy(text)[1])
    assert read_policy("permit me", file="gpu.yaml")[1][0].message.startswith("gpu.yaml:1:1: a policy is a mapping")


KEYS = ["gpuiso", "devices", "default", "gpu.max", "memory.max", "pids.max", "io.max", "cpuset.cpus", "access", "allow"]
VALUES = [
    "1",
    "deny",
    "allow",
    "{}",
    "[]",
    "-",
    "max",
    "&a",
    "*a",
    "5G",
    "'8:0 rbps=1'",
    "!!str",
    "|",
    ">",
    "?",
    ":",
    "#",
]
LINES = st.tuples(st.sampled_from(KEYS) | st.text(max_size=3), st.sampled_from(VALUES) | st.text(max_size=6))


@given(st.text() | st.lists(LINES).map(lambda lines: "gpuiso: 1\n" + "".join(f"{k}: {v}\n" for k, v in lines)))
@example("{\ufffe: 1}")
@example("gpuiso: '\\ud800'")
@example('"\\ud800": 1')
@example("%YAML 9.9\n---\ngpuiso: 1")
@example("gpuiso: 1\n? [a, b]\n: 2")
def test_any_text_gives_a_policy_or_errors(text: str) -> None:
    document, errors = read_policy(text, file="f")
    assert isinstance(document, Document)
    for error in errors:
        assert bare_message(error)
        assert error.line is None or 1 <= error.line <= text.count("\n") + 2
