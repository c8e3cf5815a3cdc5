# SPDX-License-Identifier: Apache-2.0
"""Undo steps, last first."""

from __future__ import annotations

from collections.abc import Sequence

from gpuiso.apply.calls import Calls
from gpuiso.apply.journal import Entry
from gpuiso.errors import GpuisoError

__all__ = ["undo_entries"]


def undo_entries(entries: Sequence[Entry], calls: Calls) -> tuple[list[str], list[str]]:
    """Undo all of them, whatever fails; returns what was done and what is left, in plain words."""
    done: list[str] = []
    left: list[str] = []
    for step, before in reversed(entries):
        try:
            said = step.undo(calls, before)
        except GpuisoError as error:
            left.append(error.message)
        except OSError as error:
            left.append(f"{step.describe()}: {error.strerror or error}")
        else:
            if said is not None:
                done.append(said)
    return done, left
