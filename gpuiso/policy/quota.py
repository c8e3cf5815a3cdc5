# SPDX-License-Identifier: Apache-2.0
"""Shares of time as cpu.max writes them. A container's start waits for this module: it imports nothing."""

from __future__ import annotations

__all__ = ["DEFAULT_PERIOD", "parse_integer", "parse_quota_period", "parse_share"]

DEFAULT_PERIOD = 100_000
"""µs; what cpu.max starts with (Documentation/admin-guide/cgroup-v2.rst of the kernel)."""
# kernel/sched/core.c: min_cfs_quota_period and max_cfs_quota_period are 1 ms and 1 s.
_LEAST, _LONGEST = 1_000, 1_000_000
_MOST_QUOTA = 1 << 43  # µs; the scheduler counts nanoseconds in what is left of 64 bits


def parse_integer(text: str, low: int, high: int) -> int:
    """A decimal number. :raises ValueError: it is none, or out of range."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        raise ValueError(f"expected a whole number, not {text!r}")
    # Compared by length first: Python refuses to convert thousands of digits.
    number = int(text) if len(digits.lstrip("0")) <= 20 else None
    if number is None or not low <= number <= high:
        raise ValueError(f"{text} is out of range: {low} to {high}")
    return number


def parse_quota_period(text: str) -> tuple[int | None, int]:
    """``QUOTA PERIOD`` in µs as cpu.max takes it; the quota may be ``max``, the period left out."""
    words = text.split()
    if len(words) not in (1, 2):
        raise ValueError(f"expected QUOTA PERIOD in microseconds, such as '50000 100000' or 'max', not {text!r}")
    try:
        period = parse_integer(words[1], _LEAST, _LONGEST) if len(words) == 2 else DEFAULT_PERIOD
    except ValueError as error:
        raise ValueError(f"the period: {error}") from None
    try:
        quota = None if words[0] == "max" else parse_integer(words[0], _LEAST, _MOST_QUOTA)
    except ValueError as error:
        raise ValueError(f"the quota: {error}") from None
    return quota, period


def parse_share(text: str) -> tuple[int | None, int]:
    """``QUOTA PERIOD`` in µs; a GPU has one period's time in a period, so the quota is no more than that."""
    quota, period = parse_quota_period(text)
    if quota is not None and quota > period:
        raise ValueError(f"the quota: {quota} is more than the period, {period}; no limit is written max")
    return quota, period
