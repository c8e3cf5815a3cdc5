# SPDX-License-Identifier: Apache-2.0
"""The page docs/rules.md."""

from __future__ import annotations

from collections.abc import Sequence

from gpuiso.doctor.finding import Rule

__all__ = ["rules_page"]

_HEAD = """# What the doctor can find

Made by `make docs` from the rules in gpuiso/doctor/checks; `gpuiso doctor --rules` prints the same list. The
severity is the usual one: a finding may be milder or graver where the case is.

| rule | severity | what it means |
| --- | --- | --- |
"""


def rules_page(rules: Sequence[Rule]) -> str:
    """The page: a table of all rules, then where each is documented."""
    rows = "".join(f"| {rule.id} | {rule.severity} | {_cell(rule.summary)} |\n" for rule in rules)
    sources = "".join(
        f"- {rule.id}: {', '.join(f'<{source}>' for source in rule.sources)}\n" for rule in rules if rule.sources
    )
    return f"{_HEAD}{rows}\n## Sources\n\n{sources}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
