# SPDX-License-Identifier: Apache-2.0
"""Numbers on the command line: digits alone. ``int`` also takes ``1_0``, blanks and the digits of every script."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import typer

__all__ = ["process_id", "seconds"]

_DIGITS = re.compile("[0-9]{1,18}")  # more are no pid, and Python's int() has a limit of its own
_DECIMAL = re.compile(r"[0-9]{1,9}(\.[0-9]{0,9})?|\.[0-9]{1,9}")


def process_id(text: str | int) -> int:
    """A pid. :raises typer.BadParameter: it is none."""
    if not _DIGITS.fullmatch(str(text)) or int(text) < 1:
        raise typer.BadParameter(f"{_short(str(text))!r} is not a number of 1 or more")
    return int(text)


def seconds(least: float) -> Callable[[str], float]:
    """Reads a time of ``least`` seconds or more."""

    def read(text: str) -> float:
        said = str(text)
        value = float(said) if _DECIMAL.fullmatch(said) else math.nan
        if not value >= least:
            raise typer.BadParameter(f"{_short(said)!r} is not a number of {least:g} or more")
        return value

    return read


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:40]}…"
