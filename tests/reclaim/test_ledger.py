# SPDX-License-Identifier: Apache-2.0
"""The ledger: what is done to it is found, with the line."""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuiso.errors import BadInput, NotFound
from gpuiso.reclaim.ledger import Ledger


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """Five entries."""
    ledger = Ledger(tmp_path / "log" / "ledger.jsonl")
    for number in range(5):
        ledger.append("reclaim", {"pid": number, "comm": "Ω"})
    return ledger


def lines(ledger: Ledger) -> list[str]:
    return ledger.path.read_text().splitlines()


def test_whole(ledger: Ledger) -> None:
    verdict = ledger.verify()
    entries = list(ledger.entries())
    assert (verdict.entries, verdict.fault) == (5, None)
    assert verdict.head == entries[-1]["hash"]
    assert [entry["seq"] for entry in entries] == [1, 2, 3, 4, 5]
    assert [entry["prev"] for entry in entries[1:]] == [entry["hash"] for entry in entries[:-1]]


def change(text: list[str]) -> list[str]:
    return [line.replace('"pid": 2', '"pid": 3') for line in text]


def rewrite(text: list[str]) -> list[str]:
    entry = json.loads(text[2])
    entry["pid"] = 7
    return [*text[:2], json.dumps(entry), *text[3:]]


@pytest.mark.parametrize(
    ("tamper", "line", "says"),
    [
        (change, 3, "changed"),
        (rewrite, 3, "changed"),
        (lambda text: [*text[:2], *text[3:]], 3, "has number 4, where 3 has to come"),
        (lambda text: [*text[:2], text[1], *text[2:]], 3, "has number 2, where 3"),
        (lambda text: [text[1], text[0], *text[2:]], 1, "has number 2"),
        (lambda text: text[1:], 1, "has number 2"),
        (lambda text: text[:3], 4, "2 entries are missing"),
        (lambda text: text[:4], 5, "1 entry is missing"),
        (lambda text: [], 1, "5 entries are missing"),
        (lambda text: [*text[:3], "nonsense", *text[3:]], 4, "not an entry"),
        (lambda text: [*text, "[]"], 6, "not an entry"),
    ],
)
def test_tampering(ledger: Ledger, tamper: Callable[[list[str]], list[str]], line: int, says: str) -> None:
    ledger.path.write_text("".join(f"{each}\n" for each in tamper(lines(ledger))))
    fault = ledger.verify().fault
    assert fault is not None
    assert fault.line == line
    assert says in fault.says


def test_a_new_history(ledger: Ledger, tmp_path: Path) -> None:
    other = Ledger(tmp_path / "other.jsonl")
    for number in range(6):
        other.append("reclaim", {"pid": 10 + number})
    ledger.path.write_text(other.path.read_text())
    fault = ledger.verify().fault
    assert fault is not None
    assert "written anew" in fault.says


def test_the_head_is_gone(ledger: Ledger) -> None:
    ledger.path.with_suffix(".head").unlink()
    fault = ledger.verify().fault
    assert fault is not None
    assert "missing" in fault.says


def test_a_crash_between_entry_and_head(ledger: Ledger) -> None:
    head = ledger.path.with_suffix(".head")
    before = head.read_text()
    ledger.append("reclaim", {})
    head.write_text(before)
    assert ledger.verify().fault is None


def test_a_line_that_a_crash_cut_off(ledger: Ledger) -> None:
    with ledger.path.open("a") as file:
        file.write('{"seq": 6, "ti')
    ledger.append("reclaim", {"pid": 6})
    verdict = ledger.verify()
    assert (verdict.entries, verdict.fault) == (7, None)
    assert list(ledger.entries())[5]["text"] == '{"seq": 6, "ti'


def test_none(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no ledger"):
        Ledger(tmp_path / "ledger.jsonl").verify()


def _append(path: Path) -> None:
    for number in range(20):
        Ledger(path).append("reclaim", {"pid": number})


@pytest.mark.parametrize("kind", ["fifo", "device", "directory", "link", "socket"])
def test_what_is_no_file_is_neither_waited_for_nor_read_on(ledger: Ledger, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "odd.jsonl"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(ledger.path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as end:
            end.bind(str(path))
    else:
        path = Path("/dev/zero")
    with pytest.raises(BadInput, match=f"^{path}: not a ledger: it is no regular file$"):
        Ledger(path).verify()


def test_a_head_that_is_no_file(ledger: Ledger) -> None:
    head = ledger.path.with_suffix(".head")
    head.unlink()
    os.mkfifo(head)
    fault = ledger.verify().fault
    assert fault is not None
    assert "is damaged" in fault.says


def test_many_writers(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    writers = [multiprocessing.get_context("spawn").Process(target=_append, args=(path,)) for _ in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert (Ledger(path).verify().entries, Ledger(path).verify().fault) == (60, None)
