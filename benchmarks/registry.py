# SPDX-License-Identifier: Apache-2.0
"""The topics that ``make bench`` measures: one module a topic in ``benchmarks/topics``, found by being there.

A topic is a function marked ``@topic``; it takes the number of rounds and returns rows::

    @topic("startup", "whole-process times of the command line")
    def startup(rounds: int) -> list[Row]: ...
"""

from __future__ import annotations

import importlib
import pkgutil
import statistics
from collections.abc import Callable
from dataclasses import dataclass

import benchmarks.topics

__all__ = ["NotMeasurable", "Row", "Topic", "load", "topic"]


class NotMeasurable(Exception):
    """This machine cannot measure a topic; the message says why."""


@dataclass(frozen=True)
class Row:
    """One thing that was measured.

    ``samples`` are in ``unit`` ("s", "MiB"); ``peer`` names what ``ratio`` (of medians) compares it with;
    ``bar`` is the most that the median, or with ``bar_on_ratio`` the ratio, may be; ``note`` is what a reader
    must know.
    """

    name: str
    unit: str
    samples: tuple[float, ...]
    peer: str | None = None
    ratio: float | None = None
    bar: float | None = None
    bar_on_ratio: bool = False
    note: str | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def holds(self) -> bool | None:
        """Whether the bar holds, or None where there is none."""
        judged = self.ratio if self.bar_on_ratio else self.median
        return None if self.bar is None or judged is None else judged <= self.bar


@dataclass(frozen=True)
class Topic:
    name: str
    about: str
    run: Callable[[int], list[Row]]


_topics: dict[str, Topic] = {}


def topic(name: str, about: str) -> Callable[[Callable[[int], list[Row]]], Callable[[int], list[Row]]]:
    """Register a function as a topic. Raises ValueError if the name is taken."""

    def register(run: Callable[[int], list[Row]]) -> Callable[[int], list[Row]]:
        if name in _topics:
            raise ValueError(f"two topics are named {name!r}")
        _topics[name] = Topic(name, about, run)
        return run

    return register


def load() -> dict[str, Topic]:
    """Import every topic module; the topics by name."""
    for module in sorted(entry.name for entry in pkgutil.iter_modules(benchmarks.topics.__path__)):
        importlib.import_module(f"benchmarks.topics.{module}")
    return dict(_topics)
