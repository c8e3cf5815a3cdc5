# SPDX-License-Identifier: Apache-2.0
"""Numbers in texts that a stranger may have written."""

from __future__ import annotations

__all__ = ["decimal"]

_DIGITS = 20  # of the largest number of 64 bits; int() raises for one of thousands of digits


def decimal(text: str) -> int | None:
    """The number that ``text`` is in ASCII digits, None if it is none or is longer than any that a kernel writes."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _DIGITS else None
