# SPDX-License-Identifier: Apache-2.0
"""Undo steps, last first."""

from __future__ import annotations

from collections.abc import Sequence

from gpuiso.apply.calls import Calls
from gpuiso.apply.journal import Entry
from gpuiso.apply.steps import Occupied
from gpuiso.errors import GpuisoError

__all__ = ["undo_entries"]


def undo_entries(entries: Sequence[Entry], calls: Calls) -> tuple[list[str], list[str], list[str]]:
    """Undo all of them, whatever fails; returns in plain words what was done, what stays, and what is left to do.

    What stays is what others use by now, cgroups and controllers: no rules are there, and nobody has to come back.
    """
    done: list[str] = []
    stays: list[str] = []
    left: list[str] = []
    for step, before in reversed(entries):
        try:
            said = step.undo(calls, before)
        except Occupied as error:
            stays.append(error.message)
        except GpuisoError as error:
            left.append(error.message)
        except OSError as error:
            left.append(f"{step.describe()}: {error.strerror or error}")
        else:
            if said is not None:
                done.append(said)
    return done, stays, left
