# SPDX-License-Identifier: Apache-2.0
"""Edits change what they are to change and nothing else, in whatever text a file holds."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuiso.errors import BadInput
from gpuiso.runtimes.formats import Document, Path, Value, deep_set, lookup
from gpuiso.runtimes.formats.json import JsonDocument
from gpuiso.runtimes.formats.template import TemplateDocument
from gpuiso.runtimes.formats.toml import TomlDocument
from gpuiso.runtimes.formats.toml_text import value_text
from gpuiso.runtimes.formats.yaml import YamlDocument

NAMES = ("a", "b", "no-cgroups", "c.d", "x y", "ü")
VALUES: st.SearchStrategy[Value] = st.one_of(
    st.booleans(), st.integers(-(2**60), 2**60), st.text(max_size=8), st.lists(st.text(max_size=4), max_size=3)
)
TOML_VALUES = st.one_of(
    VALUES.map(value_text),
    st.sampled_from(
        [
            '"""two\nlines # no comment\n"""',
            "'''it's\n[not] = a table'''",
            "[1,\n  2, # two, ]\n]",
            '[ "]", \'#\', """a""" ]',
            '{ p = 1, q = { r = "}" } }',
            "nan",
            "-1.5e3",
            "1979-05-27T07:32:00Z",
            '""""quoted""""',
            "0x1F",
        ]
    ),
)
COMMENTS = st.sampled_from(["", " # why", "\t#x = 1", "  "])
PATHS = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map(tuple)


def quoted(path: Path) -> str:
    return ".".join(name if name in ("a", "b", "no-cgroups") else json.dumps(name, ensure_ascii=False) for name in path)


@st.composite
def toml_texts(draw: st.DrawFn) -> str:
    """TOML with comments, odd spacing, dotted keys, tables in any order, and arrays of tables."""
    lines: list[str] = []
    newline = draw(st.sampled_from(["\n", "\r\n"]))
    for _ in range(draw(st.integers(0, 12))):
        indent = draw(st.sampled_from(["", "  ", "\t"]))
        kind = draw(st.sampled_from(["pair", "pair", "comment", "disabled", "blank", "table", "array"]))
        if kind == "pair":
            line = f"{quoted(draw(PATHS))} {draw(st.sampled_from(['=', ' =  ']))} {draw(TOML_VALUES)}{draw(COMMENTS)}"
        elif kind == "comment":
            line = "# " + draw(st.sampled_from(["it is = so", "[no.table]", '"""', "ü"]))
        elif kind == "disabled":
            line = f"#{draw(st.sampled_from(NAMES[:3]))} = true"
        elif kind == "table":
            line = f"[{quoted(draw(PATHS))}]{draw(COMMENTS)}"
        elif kind == "array":
            line = f"[[{quoted(draw(PATHS))}]]"
        else:
            line = ""
        candidate = [*lines, indent + line]
        try:
            tomllib.loads("\n".join(candidate))
        except tomllib.TOMLDecodeError:
            continue
        lines = candidate
    return newline.join(lines) + draw(st.sampled_from(["", newline]))


def same(first: Any, second: Any) -> bool:
    return repr(sorted_deep(first)) == repr(sorted_deep(second))  # NaN differs from itself


def sorted_deep(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: sorted_deep(value[name]) for name in sorted(value)}
    return [sorted_deep(one) for one in value] if isinstance(value, list) else value


def removed(old: str, new: str) -> list[str]:
    """The lines of ``old`` that are no longer there, in order, if all others are still in their order."""
    import difflib

    matcher = difflib.SequenceMatcher(None, old.splitlines(True), new.splitlines(True), autojunk=False)
    gone: list[str] = []
    for tag, start, end, _, _ in matcher.get_opcodes():
        if tag in ("replace", "delete"):
            gone += old.splitlines(True)[start:end]
    return gone


def lone_newlines(text: str) -> int:
    return text.count("\n") - text.count("\r\n")


@settings(max_examples=150, deadline=None)
@given(toml_texts(), PATHS, VALUES)
def test_toml_keeps_every_other_byte(text: str, path: Path, value: Value) -> None:
    document = TomlDocument(text, "f")
    before = tomllib.loads(text)
    held = document.line(path)
    try:
        document.set(path, value)
    except BadInput:
        above = [lookup(before, path[:length]) for length in range(1, len(path) + 1)]
        assert any(one is not None for one in above)  # something was in the way
        assert document.text == text
        return
    assert same(tomllib.loads(document.text), deep_set(before, path, value))
    gone = removed(text, document.text)
    if held is None:
        unended = text.splitlines(True)[-1:]
        assert gone in ([], unended), "a new key may only complete a last line without an end"
        assert "".join(document.text.split()).count("#") >= text.count("#")
    else:
        first = text.splitlines(True)[held - 1]
        assert gone == [] or gone[0] == first
    again = document.text
    document.set(path, value)
    assert document.text == again
    assert document.line(path) is not None
    first_line = text.splitlines(True)[:1]
    if held is None and first_line and first_line[0].endswith("\r\n"):
        assert lone_newlines(document.text) == lone_newlines(text)


JSON_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(st.sampled_from(NAMES), JSON_VALUES, max_size=4),
    st.sampled_from([None, 1, 2, 4, "\t"]),
    st.sampled_from(["", "\n", "\n\n"]),
    PATHS,
    VALUES,
)
def test_json_keeps_every_other_byte(data: Any, indent: Any, end: str, path: Path, value: Value) -> None:
    text = json.dumps(data, indent=indent, ensure_ascii=False) + end
    document = JsonDocument(text, "f")
    held = document.line(path) is not None
    try:
        document.set(path, value)
    except BadInput:
        assert held or document.line(path[:-1]) is not None or document.line(path[:1]) is not None
        assert document.text == text
        return
    assert json.loads(document.text) == deep_set(data, path, value)
    if not held and indent is not None:
        lines = [line.rstrip(",") for line in document.text.splitlines()]
        gone = [line for line in text.splitlines() if line.rstrip(",") not in lines]
        assert len(gone) <= 1
        assert all("{}" in line for line in gone), "only an empty object may be opened"
    again = document.text
    document.set(path, value)
    assert document.text == again


@pytest.mark.parametrize(
    ("text", "path", "value", "expected"),
    [
        ('{"a": 1}', ("b",), True, '{"a": 1, "b": true}'),
        (
            '{\n\t"features": {\n\t\t"x": true\n\t}\n}\n',
            ("features", "cdi"),
            True,
            '{\n\t"features": {\n\t\t"x": true,\n\t\t"cdi": true\n\t}\n}\n',
        ),
        ("", ("features", "cdi"), True, '{\n    "features": {\n        "cdi": true\n    }\n}\n'),
        ('{"f": {}}', ("f", "cdi"), True, '{"f": {\n    "cdi": true\n}}'),
        ('\ufeff{\r\n  "a": 1\r\n}', ("b",), "x", '\ufeff{\r\n  "a": 1,\r\n  "b": "x"\r\n}'),
        ('{ "a" : [ 1 ,2 ] ,"b":"\\u00e4" }', ("b",), "ä!", '{ "a" : [ 1 ,2 ] ,"b":"ä!" }'),
    ],
)
def test_json_looks_as_before(text: str, path: Path, value: Value, expected: str) -> None:
    document = JsonDocument(text, "f")
    document.set(path, value)
    assert document.text == expected


TOML = """\
# The top.
disable-require = false
#swarm-resource = "DOCKER_RESOURCE_GPU"

[nvidia-container-cli]
environment = [] # of the CLI
#no-cgroups = false
ldconfig = "@/sbin/ldconfig"

# What the runtime does.
[nvidia-container-runtime]
mode = "auto"

    [nvidia-container-runtime.modes.cdi]
    default-kind = "nvidia.com/gpu"

[last]
"""


@pytest.mark.parametrize(
    ("path", "value", "after", "line"),
    [
        (("nvidia-container-cli", "no-cgroups"), True, "#no-cgroups = false", "no-cgroups = true"),
        (("swarm-resource",), "X", '#swarm-resource = "DOCKER_RESOURCE_GPU"', 'swarm-resource = "X"'),
        (("new",), 1, "disable-require = false", "new = 1"),
        (("nvidia-container-cli", "root"), "/r", 'ldconfig = "@/sbin/ldconfig"', 'root = "/r"'),
        (
            ("nvidia-container-runtime", "modes", "cdi", "spec-dirs"),
            ["/etc/cdi"],
            '    default-kind = "nvidia.com/gpu"',
            '    spec-dirs = ["/etc/cdi"]',
        ),
    ],
)
def test_a_new_key_stands_where_a_reader_looks_for_it(path: Path, value: Value, after: str, line: str) -> None:
    document = TomlDocument(TOML, "f")
    document.set(path, value)
    lines = document.text.splitlines()
    assert lines[lines.index(after) + 1] == line
    assert [one for one in lines if one != line] == TOML.splitlines()
    assert document.line(path) == lines.index(line) + 1


def test_a_value_keeps_its_comment() -> None:
    document = TomlDocument(TOML, "f")
    document.set(("nvidia-container-cli", "environment"), ["A=1"])
    assert document.text == TOML.replace("[] # of", '["A=1"] # of')


def test_a_new_table_stands_beside_its_relatives_and_above_the_comments_of_the_next() -> None:
    document = TomlDocument(TOML, "f")
    document.set(("nvidia-container-cli", "sub", "key"), True)
    assert "\n[nvidia-container-cli.sub]\nkey = true\n\n# What the runtime does.\n[nvidia" in document.text


@pytest.mark.parametrize(
    ("text", "path", "says"),
    [
        ("a = 1\n", ("a", "b"), "f:1: a is no table"),
        ("\n[a]\nb = 1\n", ("a",), "f:2: a is a table, no value"),
        ("[[a]]\n", ("a", "b"), "a is no table"),
    ],
)
def test_what_is_in_the_way_is_named(text: str, path: Path, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        TomlDocument(text, "f").set(path, 1)


# Each line is the one before it, ten times: 10^30 values.
ALIASES = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 31))


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [
        (TomlDocument, "a = 1\nb = = 2\n", "f:2:5: not TOML"),
        (TomlDocument, "a = [", "f:1: not TOML"),
        (TomlDocument, "a = 1\na = 2\n", "f:2:"),
        (JsonDocument, '{"a": 1,\n}', "f:2:1: not JSON"),
        (JsonDocument, "[]", "f:1: the top of the document must be an object"),
        (JsonDocument, '{"a": 1, "a": 2}', "f: a is given twice in one object"),
        (JsonDocument, "[" * 100_000, "nested too deep"),
        (YamlDocument, "a: 1\n b: 2\n", "f:2:3: not YAML"),
        (YamlDocument, "- a\n", "must be a mapping"),
        (YamlDocument, "[" * 100_000, "nested too deep"),
        (YamlDocument, "b: 1\na: &x [*x]\n", "f:2: not YAML that can be read: an alias leads into itself"),
        (YamlDocument, "a: &x {b: *x}\n", "f:1: not YAML that can be read: an alias leads into itself"),
        (YamlDocument, "a: 1\nb: 2\na: 3\n", "f:3: a is given twice in one mapping"),
        (YamlDocument, "a:\n  b: 1\n  'b': 1\n", "f:3: b is given twice in one mapping"),
        (YamlDocument, ALIASES, "f:6: more than 200000 values"),
        (TemplateDocument, "# gpuiso: begin\n", "f:1: .* must stand once"),
    ],
)
def test_a_file_that_cannot_be_read_names_its_line(kind: type[Any], text: str, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        kind(text, "f")


YAML = (
    "apiVersion: v1 # the version\nfeatureGates:\n  # inner\n  X: true\n  # after\n\n# tail\ncpuManagerPolicy: 'none'\n"
)


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        (("cpuManagerPolicy",), "static", YAML.replace("'none'", "static")),
        (("featureGates", "Y"), True, YAML.replace("  X: true\n", "  X: true\n  Y: true\n")),
        (("featureGates", "X"), False, YAML.replace("X: true", "X: false")),
        (("new",), "yes", YAML + "new: 'yes'\n"),
        (("new", "inner"), "a: b", YAML + "new:\n  inner: 'a: b'\n"),
        (("cpuManagerPolicy",), "none", YAML),
    ],
)
def test_yaml_keeps_every_other_byte(path: Path, value: Value, expected: str) -> None:
    document = YamlDocument(YAML, "f")
    document.set(path, value)
    assert document.text == expected
    assert lookup(yaml.safe_load(document.text), path) == value
    assert document.line(path) is not None


def test_yaml_with_aliases_and_merges_is_read() -> None:
    text = "a: &a {x: 1}\nb: *a\nc:\n  <<: *a\n  <<: *a\n  x: 2\n"
    document = YamlDocument(text, "f")
    document.set(("new",), True)
    assert document.text == text + "new: true\n"


def test_yaml_in_braces_is_left_alone() -> None:
    document = YamlDocument("featureGates: {X: true}\n", "f")
    document.set(("featureGates", "X"), False)
    assert document.text == "featureGates: {X: false}\n"
    with pytest.raises(BadInput, match="f:1: featureGates is written in braces"):
        document.set(("featureGates", "Y"), True)


@pytest.mark.parametrize("start", ["", '{{ template "base" . }}\n', "{{ if }}\n[x]\n{{ end }}"])
def test_a_template_gets_a_block_at_its_end(start: str) -> None:
    document: Document = TemplateDocument(start, "f")
    document.set(("plugins", "a.b", "x"), True)
    first = document.text
    assert first.startswith(start)
    again = TemplateDocument(first, "f")
    assert again.data == {"plugins": {"a.b": {"x": True}}}
    assert first.splitlines()[(again.line(("plugins", "a.b", "x")) or 0) - 1] == "x = true"
    again.set(("plugins", "a.b", "x"), False)
    assert again.text == first.replace("x = true", "x = false")


def test_a_template_that_is_not_changed_stays() -> None:
    assert TemplateDocument("{{ template }}", "f").text == "{{ template }}"


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_what_python_reads_and_json_has_not(word: str) -> None:
    with pytest.raises(BadInput, match=f"daemon.json: not JSON: {word} is no value of JSON"):
        JsonDocument(f'{{"debug": {word}}}', "daemon.json")
