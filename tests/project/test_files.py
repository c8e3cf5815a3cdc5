# SPDX-License-Identifier: Apache-2.0
"""Rules for every file that the linters do not know."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.project.source import package_files, parse, project_files
from tests.support import REPOSITORY

LONGEST_FILE = 600
LONGEST_FUNCTION = 80
SPDX = "# SPDX-License-Identifier: Apache-2.0"
EXITS = ("SystemExit", "exit", "quit", "sys.exit")
# The brackets keep this line from finding itself.
LEFT_OVER = re.compile(r"\b([T]ODO|[F]IXME|[X]XX|[N]otImplementedError)\b")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def text(path: Path) -> str:
    return (REPOSITORY / path).read_text()


def lines_of(function: Function) -> int:
    """The lines of a function without its docstring, which may be as long as it needs to be."""
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    if ast.get_docstring(function) is not None:
        docstring = function.body[0]
        lines -= (docstring.end_lineno or docstring.lineno) - docstring.lineno + 1
    return lines


@pytest.mark.parametrize("path", project_files(".py"), ids=str)
def test_python_file(path: Path) -> None:
    lines = text(path).splitlines()
    assert lines[0] == SPDX
    assert len(lines) <= LONGEST_FILE
    long = {
        node.name: lines_of(node)
        for node in ast.walk(parse(path))
        if isinstance(node, Function) and lines_of(node) >= LONGEST_FUNCTION
    }
    assert long == {}


def test_scripts_name_their_licence() -> None:
    scripts = [path for path in project_files() if text_or_none(path).startswith("#!")]
    assert Path("scripts/setup") in scripts
    assert [path for path in scripts if SPDX not in text(path).splitlines()[:3]] == []


def test_nothing_is_left_over() -> None:
    found = [
        f"{path}:{number}: {line.strip()}"
        for path in project_files()
        for number, line in enumerate(text_or_none(path).splitlines(), 1)
        if LEFT_OVER.search(line)
    ]
    assert not found, "\n".join(found)


def text_or_none(path: Path) -> str:
    """The text of a file, or nothing where it is binary."""
    data = (REPOSITORY / path).read_bytes()
    return "" if b"\0" in data else data.decode()


@pytest.mark.parametrize("path", package_files(), ids=str)
def test_only_the_command_line_exits(path: Path) -> None:
    if path.parts[1] in ("cli", "hook", "__main__.py"):
        return
    exits = [
        f"{path}:{node.lineno}"
        for node in ast.walk(parse(path))
        if (isinstance(node, ast.Call) and ast.unparse(node.func) in EXITS)
        or (isinstance(node, ast.Raise) and node.exc is not None and ast.unparse(node.exc) in EXITS)
    ]
    assert exits == []


def test_changelog_has_a_place_for_the_next_release() -> None:
    headings = [line for line in text(Path("CHANGELOG.md")).splitlines() if line.startswith("## ")]
    assert headings[0] == "## [Unreleased]"
