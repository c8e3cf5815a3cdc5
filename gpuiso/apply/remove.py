# SPDX-License-Identifier: Apache-2.0
"""Take rules away: put back what was there before gpuiso came."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpuiso.apply.applied import load_applied
from gpuiso.apply.calls import Calls
from gpuiso.apply.recover import recover_locked
from gpuiso.apply.state import State
from gpuiso.apply.steps import AttachProgram
from gpuiso.apply.target import Target
from gpuiso.apply.undo import undo_entries
from gpuiso.errors import NotFound, NotUndone

__all__ = ["Removed", "remove"]


@dataclass(frozen=True)
class Removed:
    """What was put back, in plain words. ``remembered`` is False if all that was known was the program itself."""

    done: tuple[str, ...]
    remembered: bool
    recovered: tuple[str, ...] = ()


def remove(target: Target, *, state: State, calls: Calls) -> Removed:
    """Undo all that was applied to a target, in reverse.

    A removal that dies half-way is finished by ``recover``. A cgroup that was made for the rules and that others use
    by now is left, and forgotten.

    :raises NotFound: nothing of gpuiso's is there.
    :raises NotUndone: something could not be put back; the rest was. It can be tried again.
    """
    with state.lock():
        recovered = recover_locked(state, calls, target.key)
        applied = load_applied(state, target.key)
        if applied is None or (applied.generation is not None and applied.generation != target.generation(calls)):
            if applied is not None:
                applied.forget(calls, state)
            return Removed((_detach(target, calls),), remembered=False, recovered=tuple(recovered))
        replace(applied, removing=True).write(calls, state)
        done, stays, left = undo_entries(applied.entries, calls)
        if left:
            raise NotUndone(f"could not be put back: {'; '.join(left)}", hint="put that right; gpuiso recover goes on")
        applied.forget(calls, state)
        return Removed((*done, *stays), remembered=True, recovered=tuple(recovered))


def _detach(target: Target, calls: Calls) -> str:
    """Without a record only our program can be told from what others did."""
    if target.v2 is not None:
        said = AttachProgram(target.v2.mount, target.v2.cgroup, "", 0).undo(calls, {"programs": []})
        if said is not None:
            return said
    raise NotFound(f"no rules of gpuiso's on {target.name}")
