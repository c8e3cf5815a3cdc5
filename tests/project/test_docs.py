# SPDX-License-Identifier: Apache-2.0
"""What the documents point at exists."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.project.readme import README, SESSION, refreshed
from tests.project.source import project_files
from tests.support import REPOSITORY

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
# A path in backticks that starts with a directory of the project, as in `examples/hosts/h200-x4`.
PATH = re.compile(r"`((?:benchmarks|docs|examples|gpuiso|hooks|cdi-specs|scripts|tests)/[\w./-]*)`")
CODE_BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def heading_anchors(document: str) -> set[str]:
    """The anchors of a page's headings, as GitHub and its kin make them."""
    titles = re.findall(r"^#+ +(.+)$", CODE_BLOCK.sub("", document), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", project_files(".md"), ids=str)
def test_links_resolve(path: Path) -> None:
    page = REPOSITORY / path
    broken = []
    for link in LINK.findall(CODE_BLOCK.sub("", page.read_text())):
        if link.startswith(("https://", "http://", "mailto:")):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists() or (anchor and anchor not in heading_anchors(target.read_text())):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("path", project_files(".md"), ids=str)
def test_paths_named_exist(path: Path) -> None:
    page = REPOSITORY / path
    named = PATH.findall(page.read_text())
    assert [name for name in named if not ((REPOSITORY / name).exists() or (page.parent / name).exists())] == []


def test_every_dependency_is_explained() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = [entry for extra in project["optional-dependencies"].values() for entry in extra]
    names = [re.split(r"[<>=!~\[; ]", entry)[0] for entry in [*project["dependencies"], *extras]]
    explained = (REPOSITORY / "docs/dependencies.md").read_text()
    assert [name for name in names if explained.count(f"| {name} |") != 1] == []


def test_what_tests_import_is_installed_to_develop() -> None:
    """A test that skips for want of a package is one that nobody runs."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    entries = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    installed = {re.split(r"[<>=!~\[; ]", entry)[0].replace("-", "_") for entry in entries}
    texts = [(REPOSITORY / path).read_text() for path in project_files(".py")]
    wanted = {name for text in texts for name in re.findall(r"importorskip\(.(\w+)", text)}
    assert "kubernetes_validate" in wanted
    assert wanted <= installed


def test_the_tests_of_the_lab_are_listed() -> None:
    page = (REPOSITORY / "docs/lab.md").read_text()
    modules = [path.stem for path in (REPOSITORY / "tests/lab_checks").glob("*.py") if path.stem != "__init__"]
    assert [name for name in sorted(modules) if f"`{name}`" not in page] == []


def test_readme_shows_what_is_printed() -> None:
    page = README.read_text()
    assert len(SESSION.findall(page)) >= 3
    assert page == refreshed(page), "make docs writes it anew"


def test_rules_page_is_that_of_the_rules() -> None:
    argv = [sys.executable, "-m", "gpuiso", "doctor", "--rules", "--markdown"]
    printed = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    assert (REPOSITORY / "docs/rules.md").read_text() == printed, "make docs writes it anew"
