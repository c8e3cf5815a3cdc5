# SPDX-License-Identifier: Apache-2.0
"""docs/policy.md tells of everything that a policy may hold."""

from __future__ import annotations

import re

from gpuiso.policy.cgroup_files import FILES
from gpuiso.policy.document import parse_policy
from gpuiso.policy.nodes import NODE_SETS
from tests.support import REPOSITORY

PAGE = (REPOSITORY / "docs/policy.md").read_text()


def test_every_file_and_every_default_node_is_told_of() -> None:
    told = set(re.findall(r"`([^`\n]+)`", PAGE))
    assert set(FILES) - told == set()
    for nodes in NODE_SETS.values():
        assert set(nodes) - told == set()
        for major, minor in nodes.values():
            assert f"{major}:{'*' if minor is None else minor}" in PAGE


def test_the_policy_shown_is_one() -> None:
    (shown,) = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert len(parse_policy(shown).statements or ()) == 3
