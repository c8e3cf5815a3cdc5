# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuiso.errors import BadInput
from gpuiso.policy.parse import Line, parse_line, parse_statements, parse_subject, read_statements
from gpuiso.policy.place import BadPolicy, Place
from gpuiso.policy.rule import MAX_MAJOR, MAX_MINOR, letters
from gpuiso.policy.statement import DeviceClass, Glob, GpuName, MigName, NodeSet, Numbers, Path, Statement, Subject

HEX = st.text("0123456789abcdefABCDEF", min_size=1, max_size=12)
# Words of a path: nothing that ends a word, starts a comment or does not print.
NAME = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z"), exclude_characters="#*?[/"), min_size=1)
NUMBERS = st.builds(
    Numbers,
    st.sampled_from(["b", "c"]),
    st.none() | st.integers(0, MAX_MAJOR),
    st.none() | st.integers(0, MAX_MINOR),
)
INDEX = st.integers(0, 9999).map(str)
LOOKED_UP: st.SearchStrategy[Subject] = st.one_of(
    st.lists(NAME, min_size=1, max_size=3).map(lambda names: Path("/" + "/".join(names))),
    st.tuples(NAME, st.sampled_from(["*", "?", "[0-9]"])).map(lambda pair: Glob(f"/dev/{pair[0]}{pair[1]}")),
    st.builds(DeviceClass, st.sampled_from(["b", "c"]), NAME),
    st.one_of(
        st.just("all"),
        INDEX,
        INDEX.map("amd:{}".format),
        HEX.map("GPU-{}".format),
        st.just("00000000:0A:1f.0"),
    ).map(GpuName),
    st.one_of(HEX.map("MIG-{}".format), HEX.map("MIG-GPU-{}/1/0".format)).map(MigName),
)
ACCESS = st.integers(1, 7).map(letters)
STATEMENTS = st.one_of(
    st.builds(Statement, st.booleans(), LOOKED_UP, ACCESS, st.booleans()),
    st.builds(Statement, st.booleans(), NUMBERS | st.just(NodeSet("default-nodes")), ACCESS),
    st.builds(Statement, st.booleans(), st.just(Numbers("a"))),
)


@given(STATEMENTS)
def test_what_a_statement_prints_is_read_back(statement: Statement) -> None:
    assert parse_line(Line(str(statement), Place())) == statement


@given(st.lists(STATEMENTS))
def test_a_text_of_statements(statements: list[Statement]) -> None:
    text = "".join(f"\n  {statement}\t# {number}\r\n" for number, statement in enumerate(statements))
    read = parse_statements(text, file="gpu.rules")
    assert read == statements
    assert [statement.place.line for statement in read] == [2 + 2 * number for number in range(len(statements))]
    assert [statement.place.text for statement in read] == [str(statement) for statement in statements]


ACTIONS = ["allow", "deny", "x"]
SUBJECTS = [
    "a",
    "b",
    "c",
    "gpu",
    "mig",
    "-",
    "-gpu",
    "-/",
    "/",
    "/dev/*",
    "char-",
    "char-x",
    "block-7",
    "default-nodes",
]
NAMES = ["1:3", "*:*", "195:", ":", "all", "0", "GPU-1", "MIG-", "rwm", "rr", "#"]
WORDS = st.sampled_from(ACTIONS) | st.sampled_from(SUBJECTS) | st.sampled_from(NAMES)


@given(st.text() | st.lists(WORDS | st.text(max_size=3)).map(" ".join))
@example("allow /dev/\x00 r")
@example("allow gpu \ud800")
def test_any_text_gives_statements_or_errors(text: str) -> None:
    statements, errors = read_statements(text, file="f")
    for error in errors:
        assert error.line is not None
        assert error.column is not None
        line = text.split("\n")[error.line - 1]
        assert 1 <= error.column <= len(line) + 1
        assert error.message.startswith(f"f:{error.line}:{error.column}: ")
    for statement in statements:
        assert parse_line(Line(str(statement), Place())) == statement


@pytest.mark.parametrize(
    ("text", "statement"),
    [
        ("allow /dev/nvidia0", Statement(True, Path("/dev/nvidia0"))),
        ("allow /dev/nvidia[0-3] rw", Statement(True, Glob("/dev/nvidia[0-3]"), "rw")),
        ("deny -char-nvidia-uvm wr", Statement(False, DeviceClass("c", "nvidia-uvm"), "rw", optional=True)),
        ("allow block-*", Statement(True, DeviceClass("b", "*"))),
        ("allow gpu 0", Statement(True, GpuName("0"))),
        ("allow -gpu all r", Statement(True, GpuName("all"), "r", optional=True)),
        ("allow gpu 0000:06:00.0", Statement(True, GpuName("0000:06:00.0"))),
        ("allow mig MIG-GPU-98b0e715/1/0", Statement(True, MigName("MIG-GPU-98b0e715/1/0"))),
        ("allow default-nodes rw", Statement(True, NodeSet("default-nodes"), "rw")),
    ],
)
def test_statements(text: str, statement: Statement) -> None:
    assert parse_line(Line(text, Place())) == statement


@pytest.mark.parametrize(
    ("text", "column", "message", "hint"),
    [
        ("allow -c 1:3 r", 7, "- is for what this host may lack; c 1:3 is the same everywhere", None),
        ("allow - gpu 0", 8, "expected a device", None),
        ("allow nvidia0", 7, "not 'nvidia0'", "a node is named by its path: /dev/nvidia0"),
        ("allow GPU-98b0", 7, "not 'GPU-98b0'", "write: gpu GPU-98b0"),
        ("allow gpu MIG-1", 11, "expected an index, a UUID (GPU-…), a PCI address or all", "write: mig MIG-1"),
        ("allow gpu 00001", 11, "not '00001'", None),
        ("allow gpu", 10, "expected a GPU: an index, a UUID, a PCI address or all, found the end", None),
        ("allow mig GPU-1", 11, "expected a UUID (MIG-…), not 'GPU-1'", None),
        ("allow char- rw", 7, "'char-' names no driver", None),
        ("gpu 0", 1, "expected allow or deny, not 'gpu'", "a rule starts with allow or deny: allow gpu 0"),
        ("allow /dev/nvidia0 rw rw", 23, "'rw' is more than a rule holds", None),
        ("allow /dev/n\x1b[2Jl", 7, "holds a character that cannot stand in a rule", None),
    ],
)
def test_errors(text: str, column: int, message: str, hint: str | None) -> None:
    with pytest.raises(BadInput) as caught:
        parse_line(Line(text, Place("gpu.rules", 4)))
    assert message in caught.value.message
    assert (caught.value.line, caught.value.column) == (4, column)
    assert caught.value.hint == hint


def test_an_access_by_itself() -> None:
    place = Place("p", 2, 10)
    assert parse_subject(Line("gpu 0", place), allow=True, access="r") == Statement(True, GpuName("0"), "r")
    assert parse_subject(Line("c 1:3", place), allow=True, access="r") == Statement(True, Numbers("c", 1, 3), "r")
    with pytest.raises(BadInput, match=r"^p:2:16: the access is given twice: here \(w\) and by itself \(r\)"):
        parse_subject(Line("c 1:3 w", place), allow=True, access="r")
    with pytest.raises(BadInput, match=r"^p:2:10: a stands for every device and every access; 'r' cannot narrow it"):
        parse_subject(Line("a", place), allow=True, access="r")


def test_all_errors_at_once() -> None:
    with pytest.raises(BadPolicy, match=r"^f:1:1: .* \(and 1 more: gpuiso rules check shows all\)$") as caught:
        parse_statements("x\nallow a\ny", file="f")
    assert [error.line for error in caught.value.errors] == [1, 3]
    assert (caught.value.code, caught.value.exit_code, caught.value.line) == ("bad-input", 2, 1)
