# SPDX-License-Identifier: Apache-2.0
"""The settings for systemd, given to a real one: the program it makes of them does what the rules mean."""

from __future__ import annotations

import os
import random
from itertools import product

import pytest

from gpuiso.devfilter.interpret import Access, interpret
from gpuiso.errors import NotSupported
from gpuiso.host.device_programs import query_device_programs
from gpuiso.policy.meaning import allowed_bits, permits
from gpuiso.policy.parse import parse_rules
from gpuiso.policy.rule import DeviceType, Rule
from gpuiso.policy.systemd import to_systemd
from tests.devfilter.layouts import MAJORS, MINORS, random_rules
from tests.lab.host import Lab
from tests.tiers import requires

pytestmark = requires("lab")

TYPES: tuple[DeviceType, ...] = ("b", "c")
GRID = [
    Access(device, major, minor, mask)
    for device, major, minor, mask in product(TYPES, (*MAJORS, 2), (*MINORS, 7), range(1, 8))
]
LISTS = 12
NULL = Rule(True, "c", 1, 3, "rwm")
"""systemd opens /dev/null for a service after it entered its cgroup; without it the service does not start."""


def lists_that_systemd_can_hold() -> list[list[Rule]]:
    """Some made by hand, some random, none that allows everything."""
    found = [
        [*parse_rules("allow c 195:0 rw\nallow c 195:255 r\nallow c 195:255 w\nallow c 238:* rwm"), NULL],
        [*parse_rules("allow c *:* r\nallow c 1:3 w\nallow b 1:* m"), NULL],
    ]
    source = random.Random(8)
    while len(found) < LISTS:
        rules = [*random_rules(source, source.randint(2, 10)), NULL]
        try:
            if to_systemd(rules).allow:
                found.append(rules)
        except NotSupported:
            continue
    return found


@pytest.mark.parametrize("release", ["lab13", "lab12"])
def test_a_real_systemd_holds_the_rules(request: pytest.FixtureRequest, release: str) -> None:
    lab: Lab = request.getfixturevalue(release)
    for number, rules in enumerate(lists_that_systemd_can_hold()):
        unit = f"policy-{os.getpid()}-{number}.service"
        options = [f"--property={line}" for line in to_systemd(rules).unit_lines()]
        lab.run(["systemd-run", f"--unit={unit}", *options, "sleep", "1000"])
        try:
            cgroup = lab.host_cgroup(lab.sh('systemctl show -P ControlGroup "$1"', unit))
            (program,) = query_device_programs(str(cgroup), str(cgroup)) or ()
        finally:
            lab.run(["systemctl", "kill", "-s", "KILL", unit], check=False)
            lab.run(["systemctl", "reset-failed", unit], check=False)
        assert program.insns is not None
        for access in GRID:
            bits = allowed_bits(rules, access.type, access.major, access.minor)
            expected = "allow" if permits(bits, access.mask) else "deny"
            assert interpret(program.insns, access).value == expected, (access, [str(rule) for rule in rules])
