# SPDX-License-Identifier: Apache-2.0
"""Every page of help: somebody who knows nothing of gpuiso finds an example, the exit codes and what each option is."""

from __future__ import annotations

import re

import pytest

from tests.cli.command import run

Capture = pytest.CaptureFixture[str]
VERBS = {
    "cdi": ("generate", "inject", "list", "refresh", "validate"),
    "hook": ("inject", "install", "refresh", "seccomp", "show"),
    "ledger": ("verify",),
    "rules": ("apply", "check", "compile", "remove", "show", "unit"),
}
ALONE = ("config", "doctor", "explain", "govern", "leases", "map", "reclaim", "recover", "repair", "restore", "run")
PAGES = [*((verb,) for verb in (*ALONE, "visible")), *((group, verb) for group in VERBS for verb in VERBS[group])]


def commands(page: str) -> list[str]:
    """What the list of commands at the end of a page names."""
    return re.findall(r"^  (\w+)  ", page.partition("\nCommands:\n")[2], re.MULTILINE)


def entries(page: str) -> list[str]:
    """Each argument and option with what is said of it, on one line."""
    said = re.sub(r"\n {3,}", "  ", page)
    part = re.split(r"^(?:Arguments|Options):$", said, flags=re.MULTILINE)[1:]
    return [line for text in part for line in text.splitlines() if line.startswith("  ")]


def test_every_verb_is_here(capsys: Capture) -> None:
    assert sorted(commands(run(capsys, "--help").out)) == sorted([*ALONE, "visible", *VERBS])
    for group, verbs in VERBS.items():
        assert sorted(commands(run(capsys, group, "--help").out)) == list(verbs)


@pytest.mark.parametrize("group", [(), *((group,) for group in VERBS)], ids=lambda group: " ".join(group) or "gpuiso")
def test_the_list_of_commands_says_all_of_each(capsys: Capture, group: tuple[str, ...]) -> None:
    assert "..." not in run(capsys, *group, "--help").out.partition("\nCommands:\n")[2]


@pytest.mark.parametrize("verb", PAGES, ids=" ".join)
def test_a_page(capsys: Capture, verb: tuple[str, ...]) -> None:
    page = run(capsys, *verb, "--help").out
    examples = page.partition("\n  Examples:\n")[2].partition("\n\n")[0]
    assert f"gpuiso {' '.join(verb)}" in examples
    codes = page.partition("\n  Exit codes: ")[2].partition("\n\n")[0]
    assert re.findall(r"(?:^|[;:] )(\d+) ", " ".join(codes.split())) or "run" in verb
    assert entries(page)
    for entry in entries(page):
        name, _, said = entry.strip().partition("  ")
        assert said.strip(), f"nothing is said of {name}"
        assert not re.search(r"<(str|int|float|read)>", name), f"{name}: of what kind its value is tells Python's word"
