# SPDX-License-Identifier: Apache-2.0
"""Limits that a policy sets: shares of time, and bytes.

All of these parsers take the text as written and raise ValueError with a sentence about it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

__all__ = ["DEFAULT_PERIOD", "Bytes", "GpuMax", "parse_bytes", "parse_gpu_max", "parse_integer", "parse_quota_period"]

Bytes = int | Literal["max"]

DEFAULT_PERIOD = 100_000
"""µs; what cpu.max starts with (Documentation/admin-guide/cgroup-v2.rst of the kernel)."""
# kernel/sched/core.c: min_cfs_quota_period and max_cfs_quota_period are 1 ms and 1 s.
_LEAST, _LONGEST = 1_000, 1_000_000
_MOST_QUOTA = 1 << 43  # µs; the scheduler counts nanoseconds in what is left of 64 bits

_SUFFIXES = {suffix: 10 * (place + 1) for place, suffix in enumerate("KMGTPE")}
_BYTES = re.compile(r"([0-9]+)([KMGTPE]?)", re.IGNORECASE)
_MOST_BYTES = (1 << 63) - 1


@dataclass(frozen=True)
class GpuMax:
    """GPU time: ``quota`` µs of every ``period`` µs; None is no limit. It prints as ``gpu.max`` is written."""

    quota: int | None
    period: int = DEFAULT_PERIOD

    @property
    def share(self) -> float:
        """The part of the time, 1.0 for no limit."""
        return 1.0 if self.quota is None else self.quota / self.period

    def __str__(self) -> str:
        return f"{'max' if self.quota is None else self.quota} {self.period}"


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


def parse_gpu_max(text: str) -> GpuMax:
    """``QUOTA PERIOD`` in µs; a GPU has one period's time in a period, so the quota is no more than that."""
    quota, period = parse_quota_period(text)
    if quota is not None and quota > period:
        raise ValueError(f"the quota: {quota} is more than the period, {period}; no limit is written max")
    return GpuMax(quota, period)


def parse_bytes(text: str) -> Bytes:
    """Bytes with an optional suffix of K, M, G, T, P, E (powers of 1024), or ``max``."""
    if text == "max":
        return "max"
    match = _BYTES.fullmatch(text)
    if match is None:
        raise ValueError(f"expected bytes (a whole number, with K, M, G, T, P or E behind it) or max, not {text!r}")
    digits = match[1].lstrip("0") or "0"
    number = int(digits) << _SUFFIXES.get(match[2].upper(), 0) if len(digits) <= 20 else _MOST_BYTES + 1
    if number > _MOST_BYTES:
        raise ValueError(f"{text} is more than a kernel counts; no limit is written max")
    return number
