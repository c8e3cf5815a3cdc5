# SPDX-License-Identifier: Apache-2.0
"""Translated dumps of programs that were really written by others (kernel 6.18), with what they amount to."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from gpuiso.devfilter.insn import unpack
from gpuiso.devfilter.interpret import Access, interpret
from gpuiso.devfilter.owner import GPUISO_NAME, owner
from gpuiso.devfilter.recover import recover
from gpuiso.devfilter.table import MASKS
from gpuiso.policy.rule import DeviceType

DUMPS = sorted((Path(__file__).parent / "dumps").glob("*.json"))
TYPES: tuple[DeviceType, ...] = ("b", "c")


@pytest.fixture(params=DUMPS, ids=lambda path: path.stem)
def dump(request: pytest.FixtureRequest) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(request.param.read_text())
    return content


def test_there_are_dumps_of_every_maker() -> None:
    assert {json.loads(path.read_text())["maker"] for path in DUMPS} == {"systemd", "runc", "crun"}


def test_rules(dump: dict[str, Any]) -> None:
    assert [str(line) for line in recover(bytes.fromhex(dump["insns"])).lines] == dump["rules"]


def test_maker(dump: dict[str, Any]) -> None:
    program = bytes.fromhex(dump["insns"])
    assert owner(program, name=dump["name"]).name == dump["maker"]
    assert owner(program).name == dump["maker"], "by its layout alone"


def test_the_name_alone_makes_none_ours(dump: dict[str, Any]) -> None:
    program = bytes.fromhex(dump["insns"])
    assert owner(program, name=GPUISO_NAME, gpl_compatible=True).name == "foreign"
    if len(unpack(program)) > 2:  # the shortest ones are the same whoever writes them
        assert owner(program, name=GPUISO_NAME).name == "foreign"


def test_rules_answer_as_the_interpreter(dump: dict[str, Any]) -> None:
    program = bytes.fromhex(dump["insns"])
    recovered = recover(program)
    for device, major, minor, mask in product(TYPES, (0, 1, 5, 8, 10, 136, 195), (0, 3, 11, 200, 229), MASKS):
        access = Access(device, major, minor, mask)
        assert recovered.verdict(access).value == interpret(program, access).value, access
