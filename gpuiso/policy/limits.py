# SPDX-License-Identifier: Apache-2.0
"""Limits that a policy sets: shares of time, and bytes.

All of these parsers take the text as written and raise ValueError with a sentence about it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from gpuiso.policy.quota import DEFAULT_PERIOD, parse_integer, parse_quota_period, parse_share

__all__ = ["DEFAULT_PERIOD", "Bytes", "GpuMax", "parse_bytes", "parse_gpu_max", "parse_integer", "parse_quota_period"]

Bytes = int | Literal["max"]

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


def parse_gpu_max(text: str) -> GpuMax:
    """``QUOTA PERIOD`` in µs, the quota no more than the period."""
    return GpuMax(*parse_share(text))


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
