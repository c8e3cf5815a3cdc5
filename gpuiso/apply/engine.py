# SPDX-License-Identifier: Apache-2.0
"""Carry out a plan: a step after the other, journalled, read back, and undone in reverse on the first failure."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from gpuiso.apply.applied import Applied, load_applied
from gpuiso.apply.calls import Calls
from gpuiso.apply.journal import Entry, Journal
from gpuiso.apply.narrower import denied_elsewhere
from gpuiso.apply.plan import Plan
from gpuiso.apply.recover import recover_locked
from gpuiso.apply.state import State
from gpuiso.apply.steps import AttachProgram, Remember, Step
from gpuiso.apply.target import Target
from gpuiso.apply.undo import undo_entries
from gpuiso.apply.verify import Proof
from gpuiso.errors import FailedAndUndone, GpuisoError, NotFound, NotUndone

__all__ = ["Outcome", "carry_out"]


@dataclass(frozen=True)
class Outcome:
    """What was done. ``recovered`` tells what an earlier, interrupted change left to be done first."""

    applied: Applied
    proof: Proof
    recovered: tuple[str, ...]


def carry_out(plan: Plan, *, state: State, calls: Calls) -> Outcome:
    """Apply ``plan`` and remember it.

    :raises FailedAndUndone: a step failed; everything is as it was. The message says which step and why.
    :raises NotFound: the cgroup was removed meanwhile, and what had been done elsewhere was undone.
    :raises NotUndone: a step failed, and what is named could not be undone; the journal stays for ``gpuiso recover``.
    """
    with state.lock():
        recovered = recover_locked(state, calls, plan.target.key)
        return _carry_out(plan, state, calls, recovered)


def _carry_out(plan: Plan, state: State, calls: Calls, recovered: Sequence[str]) -> Outcome:
    entries: list[Entry] = []
    there = {place.directory: _inode(place.directory) for place in plan.target.places if place.exists}
    if (gone := _gone(there)) is not None:
        raise NotFound(f"{gone}; nothing had been changed")
    journal = Journal(calls, state.new_journal())
    with ExitStack() as keep:
        keep.callback(journal.close)

        def do(step: Step) -> None:
            before = step.record(calls)
            if isinstance(step, AttachProgram) and isinstance(earlier := known.get(step.key), AttachProgram):
                before = step.of_earlier(before, earlier)
            journal.begin(step, before)
            entries.append((step, before))
            step.apply(calls, before, keep)
            _see(plan.target, there)
            step.check(calls)

        try:
            known = _known(plan, there, state)
            journal.open(plan.about())
            for step in plan.steps:
                do(step)
            proof = plan.verify(calls)
            applied = _applied(plan, entries, state, calls)
            do(Remember(str(state.policy(applied.target)), applied.as_text()))
            journal.remove()  # from here on the change stays
        except BaseException as error:
            gone = _gone(there)  # before the undo, which removes what the plan made
            _undo(error, gone, entries, journal, calls)
            raise
        return Outcome(applied, proof, tuple(recovered))


def _known(plan: Plan, there: Mapping[str, int | None], state: State) -> dict[str, Step]:
    """The steps that are remembered of the target, by their keys."""
    applied = load_applied(state, plan.target.key)
    if applied is None or applied.generation not in (None, *there.values()):
        return {}
    return {step.key: step for step, _ in applied.entries}


def _applied(plan: Plan, entries: Sequence[Entry], state: State, calls: Calls) -> Applied:
    policy = dict(plan.policy)
    if plan.verification is not None and plan.verification.narrower:
        policy["narrower"] = list(denied_elsewhere(policy, plan.target))
    found = Applied(plan.target.key, policy, time.time(), plan.target.generation(calls), tuple(entries))
    return found.after(load_applied(state, found.target))


def _see(target: Target, there: dict[str, int | None]) -> None:
    """Add the directories of the target that exist by now."""
    for place in target.places:
        if place.directory not in there and (found := _inode(place.directory)) is not None:
            there[place.directory] = found


def _gone(there: Mapping[str, int | None]) -> str | None:
    """What to say if a cgroup is no more the one that was seen: whatever failed, failed because of that."""
    gone = next((path for path, seen in there.items() if seen is None or _inode(path) != seen), None)
    return None if gone is None else f"the cgroup {gone} was removed meanwhile"


def _inode(directory: str) -> int | None:
    try:
        return os.stat(directory).st_ino
    except OSError:
        return None


def _undo(error: BaseException, gone: str | None, entries: Sequence[Entry], journal: Journal, calls: Calls) -> None:
    """Undo, and raise what the caller is to know; returns if ``error`` itself is that (an interrupt from outside)."""
    _, stays, left = undo_entries(entries, calls)
    failed = f"{entries[-1][0].describe()}: " if entries and not isinstance(error, GpuisoError) else ""
    said = f"{failed}{_words(error)}" if gone is None else gone
    if left:
        words = f"{said}; and could not be undone: {'; '.join(left)}"
        raise NotUndone(words, hint="gpuiso recover tries again") from error
    try:
        journal.remove()
    except OSError:
        pass  # recovery finds that nothing is left to undo, and removes it
    if isinstance(error, (OSError, GpuisoError)):
        done = "what had been done was undone" if entries else "nothing had been changed"
        done = "; ".join((done, *stays))
        if gone is not None:
            raise NotFound(f"{said}; {done}") from error
        hint = error.hint if isinstance(error, GpuisoError) else None
        raise FailedAndUndone(f"{said}; {done}", hint=hint) from error


def _words(error: BaseException) -> str:
    if isinstance(error, GpuisoError):
        return error.message
    if isinstance(error, OSError):
        return os.strerror(error.errno) if error.errno else str(error)
    return type(error).__name__
