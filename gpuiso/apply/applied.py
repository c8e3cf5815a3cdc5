# SPDX-License-Identifier: Apache-2.0
"""What was applied to a target, and what had been there: kept while the host is up.

It is what ``rules show`` compares the kernel with, and what ``rules remove`` puts back. A further policy for the same
target is added: its steps take the place of those that change the same thing, but what was there *before* stays what
it was before gpuiso came.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpuiso.apply.calls import Calls
from gpuiso.apply.journal import Entry
from gpuiso.apply.state import State, read_kept
from gpuiso.apply.steps import from_json
from gpuiso.errors import BadInput

__all__ = ["Applied", "all_applied", "load_applied"]

_FORMAT = "gpuiso-applied/1"
_HINT = "move the file away: without it, remove takes away gpuiso's program alone, and apply begins anew"


@dataclass(frozen=True)
class Applied:
    """``target`` names a cgroup or unit (``Target.key``); ``policy`` is what was asked for, as JSON.

    ``generation`` tells the cgroup from a later one of the same path (its inode number; None for units).
    ``removing`` is set from the beginning of a removal to its end.
    """

    target: str
    policy: Mapping[str, Any]
    time: float
    generation: int | None
    entries: tuple[Entry, ...]
    removing: bool = False

    def after(self, earlier: Applied | None) -> Applied:
        """This one on top of an earlier one of the same target."""
        if earlier is None or earlier.generation != self.generation:
            return self
        known = {step.key: before for step, before in earlier.entries}
        steps = {step.key: (step, before) for step, before in earlier.entries}
        for step, before in self.entries:
            steps[step.key] = (step, known.get(step.key, before))
        policy = {**earlier.policy, **{name: value for name, value in self.policy.items() if value is not None}}
        return replace(self, entries=tuple(steps.values()), policy=policy)

    def as_text(self) -> str:
        """The content of its file."""
        found = {
            "format": _FORMAT,
            "target": self.target,
            "policy": self.policy,
            "time": self.time,
            "generation": self.generation,
            "entries": [{"step": step.as_json(), "before": before} for step, before in self.entries],
            "removing": self.removing,
        }
        return json.dumps(found)

    def write(self, calls: Calls, state: State) -> None:
        calls.replace_file(str(state.policy(self.target)), self.as_text().encode())

    def forget(self, calls: Calls, state: State) -> None:
        calls.unlink(str(state.policy(self.target)))


def load_applied(state: State, target: str) -> Applied | None:
    """What was applied to a target, None if nothing was. :raises BadInput: the file is damaged."""
    return _load(state.policy(target))


def all_applied(state: State) -> Iterable[Applied | BadInput]:
    """Everything that was applied; for a file that is damaged, what is wrong with it."""
    for path in sorted(state.policies.glob("*.json")):
        try:
            found: Applied | BadInput | None = _load(path)
        except BadInput as error:
            found = error
        if found is not None:
            yield found


def _load(path: Path) -> Applied | None:
    data = read_kept(path, hint=_HINT)
    if data is None:
        return None
    try:
        found = json.loads(data)
        if found.get("format") != _FORMAT:
            raise ValueError(f"its format is {found.get('format')!r}, not {_FORMAT!r}")
        entries = tuple((from_json(entry["step"]), entry["before"]) for entry in found["entries"])
        return Applied(
            target=found["target"],
            policy=found["policy"],
            time=found["time"],
            generation=found["generation"],
            entries=entries,
            removing=found["removing"],
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadInput(f"not a record of what was applied: {error}", file=str(path), hint=_HINT) from error
