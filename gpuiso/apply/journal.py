# SPDX-License-Identifier: Apache-2.0
"""A change as it is written down while it is made: a line a step, on disk before the step begins.

The first line says what is changed; each further one holds a step and what was there before it. A change ends with
the removal of its journal, so a process that dies leaves a file from which everything it did can be undone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuiso.apply.calls import Calls
from gpuiso.apply.state import read_kept
from gpuiso.apply.steps.base import Before, Step, from_json
from gpuiso.errors import BadInput

__all__ = ["Entry", "Interrupted", "Journal", "read_journal"]

_FORMAT = "gpuiso-journal/1"
_HINT = "put what it speaks of right by hand, then remove the file"

Entry = tuple[Step, Before]


class Journal:
    """The journal of the change that this process makes."""

    def __init__(self, calls: Calls, path: Path) -> None:
        self._calls = calls
        self.path = path
        self._fd = -1

    def open(self, about: Mapping[str, Any]) -> None:
        """Begin it: ``about`` is what recovery needs to know besides the steps."""
        self._fd = self._calls.open_append(str(self.path))
        self._add({"format": _FORMAT, "about": about})

    def _add(self, line: Mapping[str, Any]) -> None:
        self._calls.append(self._fd, json.dumps(line).encode() + b"\n")
        self._calls.fsync(self._fd)

    def begin(self, step: Step, before: Before) -> None:
        """Returns when the step and what was there before it are on disk."""
        self._add({"step": step.as_json(), "before": before})

    def remove(self) -> None:
        """The change is over, one way or the other."""
        self._calls.unlink(str(self.path))

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


@dataclass(frozen=True)
class Interrupted:
    """A journal that was left behind."""

    path: Path
    about: Mapping[str, Any]
    entries: tuple[Entry, ...]


def read_journal(path: Path) -> Interrupted:
    """Read a journal. A last line without its end was being written: its step had not begun.

    :raises BadInput: it is damaged otherwise.
    """
    whole, _, _ = (read_kept(path, hint=_HINT) or b"").rpartition(b"\n")
    about: Mapping[str, Any] = {}
    entries: list[Entry] = []
    number = 0
    try:
        for number, text in enumerate(whole.split(b"\n") if whole else (), start=1):
            line = json.loads(text)
            if number > 1:
                entries.append((from_json(line["step"]), line["before"]))
                continue
            if line.get("format") != _FORMAT:
                raise ValueError(f"its format is {line.get('format')!r}, not {_FORMAT!r}")
            about = line["about"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadInput(f"not a journal: {error}", file=str(path), line=number, hint=_HINT) from error
    return Interrupted(path, about, tuple(entries))
