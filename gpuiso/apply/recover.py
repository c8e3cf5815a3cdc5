# SPDX-License-Identifier: Apache-2.0
"""Finish or undo what a crash left."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress

from gpuiso.apply.applied import all_applied
from gpuiso.apply.calls import Calls
from gpuiso.apply.ended import deserted, has_ended
from gpuiso.apply.journal import Interrupted, read_journal
from gpuiso.apply.state import State
from gpuiso.apply.steps import HoldShare
from gpuiso.apply.undo import undo_entries
from gpuiso.errors import BadInput, NotUndone

__all__ = ["recover", "recover_locked"]


def recover(state: State, calls: Calls) -> list[str]:
    """Put right what interrupted changes left; returns what was done, in plain words.

    May be called at any time, any number of times, by several at once: a change that is under way holds the lock.

    :raises NotUndone: something could not be put right; its journal stays.
    """
    with state.lock():
        return recover_locked(state, calls)


def recover_locked(state: State, calls: Calls, target: str | None = None) -> list[str]:
    """The same with the lock held by the caller, who is about to change ``target`` (its key), or None.

    What cannot be put right of another target than that is said, and does not keep this one from being changed.
    """
    done = list(_set_aside(state, calls))
    left: list[str] = []

    def keep(failed: list[str], of: str) -> None:
        if target in (None, of):
            left.extend(failed)
        elif failed:
            done.append(f"could not be put right of {of}, and is tried again: {'; '.join(failed)}")

    for path in state.interrupted():
        try:
            journal = read_journal(path)
        except BadInput as error:
            left.append(f"{error.message} ({error.hint})")
            continue
        undone, failed = _undo(journal, calls)
        done += undone
        keep(failed, str(journal.about.get("target")))
        if not failed:
            calls.unlink(str(path))
    for applied in list(all_applied(state)):
        if isinstance(applied, BadInput):
            # One bad file stops no other cgroup; whoever asks for the one that it is of is told.
            done.append(f"left alone: {applied.message} ({applied.hint})")
        elif applied.removing:
            undone, stays, failed = undo_entries(applied.entries, calls)
            keep(failed, applied.target)
            if not failed:
                applied.forget(calls, state)
                done += [f"finished the removal of the rules of {applied.target}", *undone, *stays]
        elif has_ended(applied):
            # Nothing of it is left to be put right: it is of no more use, and containers come and go by the thousand.
            for step, _ in applied.entries:
                if isinstance(step, HoldShare):
                    calls.unlink(step.path)  # else a later cgroup of that path would be held to it
            applied.forget(calls, state)
        elif applied.target != target and (made := deserted(applied, calls)) is not None:
            # First the cgroup: if somebody goes in at this moment it stays, and its rules with it.
            removed, _, failed = undo_entries([(made, {"existed": False})], calls)
            if removed:
                undone, _, failed = undo_entries(applied.entries, calls)
                done += [f"the process that {applied.target} was made for has ended", *removed, *undone]
                if not failed:
                    applied.forget(calls, state)
            keep(failed, applied.target)
    if left:
        raise NotUndone(f"could not be put right: {'; '.join(left)}", hint="put that right, and try again")
    return done


def _set_aside(state: State, calls: Calls) -> Iterator[str]:
    """Directories, FIFOs and the like are nothing that gpuiso wrote, and keep it from reading what it did."""
    for path in [*state.interrupted(), *sorted(state.policies.glob("*.json"))]:
        if path.is_file() and not path.is_symlink():
            continue
        aside = f"{path}.{time.time_ns()}.aside"
        with suppress(OSError):  # then it is told as what is damaged
            calls.rename(str(path), aside)
            yield f"moved {path} to {aside}: it is no regular file, so it is not gpuiso's"


def _undo(journal: Interrupted, calls: Calls) -> tuple[list[str], list[str]]:
    done, stays, left = undo_entries(journal.entries, calls)
    what = [] if left else [f"undid a change of {journal.about.get('target', 'nothing')} that was interrupted"]
    return [*what, *done, *stays], left
