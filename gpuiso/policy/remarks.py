# SPDX-License-Identifier: Apache-2.0
"""What a policy says that is allowed and yet probably not meant."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuiso.policy.meaning import allowed_bits
from gpuiso.policy.nodes import NODE_SETS
from gpuiso.policy.place import Place, Remark
from gpuiso.policy.rule import Rule
from gpuiso.policy.statement import Statement

__all__ = ["remarks"]


def remarks(statements: Sequence[Statement] | None, rules: Sequence[Rule], *, default_allow: bool) -> Iterator[Remark]:
    """Remarks about the whole of a policy's rules."""
    if not default_allow and rules and not any(rule.allow for rule in rules):
        yield Remark(
            rules[0].place or Place(),
            "every rule denies, and so does the default: nothing is allowed at all",
            "default: allow (in a text of rules: allow a as the first) lets through what no rule denies",
        )
        return
    null = 1, 3
    bits = allowed_bits(rules, "c", *null, default_allow=default_allow)
    if statements and not bits and any(rule.allow for rule in rules):
        yield Remark(
            statements[0].place,
            "/dev/null is denied, which few programs bear",
            "allow default-nodes adds it and its like: " + ", ".join(NODE_SETS["default-nodes"]),
        )
