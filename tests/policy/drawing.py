# SPDX-License-Identifier: Apache-2.0
"""Rules and states for property tests: few numbers and many wildcards, so that they meet each other often."""

from __future__ import annotations

from itertools import product

from hypothesis import strategies as st

from gpuiso.policy.exceptions import Key
from gpuiso.policy.meaning import allowed_bits
from gpuiso.policy.rule import DeviceType, Rule, letters

__all__ = ["DEVICES", "KEYS", "RULES", "Device", "every_bits"]

Device = tuple[DeviceType, int, int]

_MAJORS = st.none() | st.sampled_from([1, 5, 195])
_MINORS = st.none() | st.sampled_from([0, 1, 3])
_RULE = st.builds(
    Rule, st.booleans(), st.sampled_from(["c", "c", "b"]), _MAJORS, _MINORS, st.integers(1, 7).map(letters)
)
_ALL = st.builds(Rule, st.booleans(), st.just("a"), st.none(), st.none(), st.just("rwm"))

RULES = st.lists(_RULE | _RULE | _RULE | _ALL, max_size=8)
KEYS: st.SearchStrategy[Key] = st.tuples(st.sampled_from(["c", "c", "b"]), _MAJORS, _MINORS)

DEVICES: list[Device] = list(product(("b", "c"), (1, 5, 195, 7), (0, 1, 3, 9)))
"""Those that rules may name, and one more major and minor that none names."""


def every_bits(rules: list[Rule], *, default_allow: bool) -> list[int]:
    """The allowed bits of each of DEVICES, going through the rules one by one."""
    return [allowed_bits(rules, *device, default_allow=default_allow) for device in DEVICES]
