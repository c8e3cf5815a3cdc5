# SPDX-License-Identifier: Apache-2.0
"""What could not be known, a reason a line: a record made by hand lacks many files for the same reason."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["lines_by_reason"]

_SHOWN = 3


def lines_by_reason(entries: Iterable[tuple[str, str]], *, shown: int = _SHOWN) -> list[str]:
    """Lines for pairs of what was not known and why; each names at most ``shown`` things."""
    by_reason: dict[str, list[str]] = {}
    for what, why in entries:
        by_reason.setdefault(why, []).append(what)
    lines = []
    for why, things in by_reason.items():
        more = f" and {len(things) - shown} more" if len(things) > shown else ""
        lines.append(f"{', '.join(things[:shown])}{more}: {why}")
    return lines
