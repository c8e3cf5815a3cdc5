# SPDX-License-Identifier: Apache-2.0
"""NVIDIA_REQUIRE_CUDA and its kin: what an image asks of the driver (libnvidia-container, src/cli/dsl.c).

Words are alternatives, parts joined by commas must all hold: ``cuda>=12.8 brand=tesla,driver>=535,driver<536``.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable

from gpuiso.host.decimals import decimal

__all__ = ["satisfied"]

_PART = re.compile(r"(!?)(cuda|driver|arch|brand)\s*(<=|>=|!=|<|>|=)\s*(.+)")
_COMPARE: dict[str, Callable[[tuple[int, ...], tuple[int, ...]], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
    "!=": operator.ne,
}


def satisfied(expression: str, *, cuda: str, driver: str) -> bool | None:
    """Whether a driver fulfils a requirement; ``cuda`` is the newest CUDA it supports (``12.8``).

    None if that hangs on the GPU's architecture or brand, or on a word that is not understood.
    """
    answers = [_all(word, cuda, driver) for word in expression.split()]
    if not answers or True in answers:
        return True
    return None if None in answers else False


def _all(word: str, cuda: str, driver: str) -> bool | None:
    answers = [_part(part, cuda, driver) for part in word.split(",")]
    if False in answers:
        return False
    return None if None in answers else True


def _part(part: str, cuda: str, driver: str) -> bool | None:
    match = _PART.fullmatch(part.strip())
    if match is None or match[2] in ("arch", "brand"):
        return None
    wanted, have = _numbers(match[4]), _numbers(cuda if match[2] == "cuda" else driver)
    if wanted is None or have is None:
        return None
    width = max(len(wanted), len(have))
    padded = [(*each, *(0,) * (width - len(each))) for each in (have, wanted)]
    answer = _COMPARE[match[3]](padded[0], padded[1])
    return not answer if match[1] else answer


def _numbers(text: str) -> tuple[int, ...] | None:
    parts = [decimal(part) for part in text.split(".")]
    numbers = tuple(part for part in parts if part is not None)
    return numbers if len(numbers) == len(parts) else None
