# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import pytest

from gpuiso.policy.rule import MKNOD, READ, WRITE, Rule, letters, mask


def test_letters_and_bits() -> None:
    assert [letters(bits) for bits in range(8)] == ["", "m", "r", "rm", "w", "wm", "rw", "rwm"]
    assert [mask(letters(bits)) for bits in range(8)] == list(range(8))
    assert (mask("m"), mask("r"), mask("w")) == (MKNOD, READ, WRITE)
    with pytest.raises(ValueError, match="unknown access 'x'"):
        mask("rx")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"type": "d"}, "unknown device type 'd'"),
        ({"major": 4096}, "major 4096 is out of range: 0 to 4095"),
        ({"minor": -1}, "minor -1 is out of range"),
        ({"access": ""}, "is not one or more of"),
        ({"access": "wr"}, "in that order"),
    ],
)
def test_a_rule_out_of_range_cannot_be_made(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Rule(**{"allow": True, "type": "c", "major": 1, "minor": 3, "access": "rw", **fields})


def test_what_a_rule_matches() -> None:
    assert Rule(True, "a", None, None, "r").matches("b", 1, 2)
    assert Rule(True, "c", 195, None, "r").matches("c", 195, 254)
    assert not Rule(True, "c", 195, None, "r").matches("b", 195, 254)
    assert not Rule(True, "c", None, 3, "r").matches("c", 1, 5)
