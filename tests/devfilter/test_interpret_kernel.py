# SPDX-License-Identifier: Apache-2.0
"""The interpreter beside the running kernel: the same programs, the same accesses."""

from __future__ import annotations

import random
from itertools import product
from pathlib import Path

import pytest

from gpuiso.devfilter.insn import pack, unpack
from gpuiso.devfilter.interpret import Access, interpret
from gpuiso.devfilter.owner import owner
from gpuiso.devfilter.table import MASKS
from gpuiso.policy.rule import DeviceType
from tests.devfilter.asking import asking, attached
from tests.devfilter.layouts import LAYOUTS, MAJORS, MINORS, random_rules
from tests.tiers import requires

pytestmark = requires("kernel")

TYPES: tuple[DeviceType, ...] = ("b", "c")
GRID = [
    Access(device, major, minor, mask)
    for device, major, minor, mask in product(TYPES, (*MAJORS, 2), (*MINORS, 1048575), MASKS)
]
LISTS_PER_LAYOUT = 80


@pytest.mark.parametrize("layout", LAYOUTS)
def test_interpreter_answers_as_the_kernel_does(layout: str, tmp_cgroup: Path) -> None:
    source = random.Random(layout)
    with asking(GRID, cgroup=tmp_cgroup) as ask:
        for _ in range(LISTS_PER_LAYOUT):
            program = pack(LAYOUTS[layout](random_rules(source, source.randint(0, 12))))
            with attached(tmp_cgroup, program) as dump:
                expected = ["allow" if allowed else "deny" for allowed in ask()]
            insns = unpack(dump)
            said = [interpret(insns, access).value for access in GRID]
            assert said == expected, [row for row in zip(GRID, said, expected, strict=True) if row[1] != row[2]]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_owner_is_told_from_the_translated_program(layout: str, tmp_cgroup: Path) -> None:
    rules = [rule for rule in random_rules(random.Random(layout), 12) if rule.type != "a"]
    with attached(tmp_cgroup, pack(LAYOUTS[layout](rules))) as dump:
        assert owner(dump).name == layout
