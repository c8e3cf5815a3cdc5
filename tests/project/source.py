# SPDX-License-Identifier: Apache-2.0
"""The project's own files and what its modules import, for the tests about the project."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support import REPOSITORY

__all__ = ["Import", "imports", "module_name", "package_files", "parse", "project_files"]

SOURCE_DIRECTORIES = (
    "gpuiso",
    "tests",
    "benchmarks",
    "scripts",
    "docs",
    "hooks",
    "cdi-specs",
    "examples",
    ".ci",
)
# What hosts and cases gave is data: it is not written in this project's style.
DATA = (Path("tests/data"), Path("examples/hosts"))
GENERATED = frozenset({"__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache"})


@dataclass(frozen=True)
class Import:
    """One imported module. ``lazy``: inside a function; ``typing_only``: below ``if TYPE_CHECKING``."""

    module: str
    line: int
    lazy: bool
    typing_only: bool

    @property
    def top(self) -> str:
        return self.module.partition(".")[0]


@functools.cache
def project_files(suffix: str = "") -> tuple[Path, ...]:
    """The files that people wrote and whose name ends with ``suffix``, relative to the project's root."""
    found = [path.relative_to(REPOSITORY) for path in REPOSITORY.glob("*") if path.is_file()]
    for directory in SOURCE_DIRECTORIES:
        found += [path.relative_to(REPOSITORY) for path in (REPOSITORY / directory).rglob("*") if path.is_file()]
    return tuple(sorted(path for path in found if path.name.endswith(suffix) and not _is_data(path)))


def _is_data(path: Path) -> bool:
    return any(path.is_relative_to(data) for data in DATA) or not GENERATED.isdisjoint(path.parts)


def package_files() -> tuple[Path, ...]:
    """The modules of the gpuiso package."""
    return tuple(path for path in project_files(".py") if path.parts[0] == "gpuiso")


@functools.cache
def parse(path: Path) -> ast.Module:
    return ast.parse((REPOSITORY / path).read_text(), filename=str(path))


def module_name(path: Path) -> str:
    """``gpuiso/host/live.py`` → ``gpuiso.host.live``; a package's ``__init__.py`` has the package's name."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> list[Import]:
    return list(_walk(parse(path), lazy=False, typing_only=False))


def _walk(node: ast.AST, *, lazy: bool, typing_only: bool) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield Import(alias.name, node.lineno, lazy, typing_only)
    elif isinstance(node, ast.ImportFrom):
        yield from _from(node, lazy, typing_only)
    elif isinstance(node, ast.If) and _is_type_checking(node.test):
        for statement in node.body:
            yield from _walk(statement, lazy=lazy, typing_only=True)
        for statement in node.orelse:
            yield from _walk(statement, lazy=lazy, typing_only=typing_only)
    else:
        inside = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            yield from _walk(child, lazy=inside, typing_only=typing_only)


def _from(node: ast.ImportFrom, lazy: bool, typing_only: bool) -> Iterator[Import]:
    module = node.module or ""
    if module == "gpuiso":  # names of the package itself are its subpackages, or its version
        for alias in node.names:
            yield Import(f"gpuiso.{alias.name}", node.lineno, lazy, typing_only)
    else:
        yield Import(module, node.lineno, lazy, typing_only)


def _is_type_checking(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", None)
    return name == "TYPE_CHECKING"
