# SPDX-License-Identifier: Apache-2.0
"""Write down what was applied, as the last step of a change."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gpuiso.apply.calls import Calls
from gpuiso.apply.steps.base import Before, Keep, Step, StepFailed

__all__ = ["Remember"]


@dataclass(frozen=True)
class Remember(Step):
    """``content`` goes to the file ``path``, which is gpuiso's own."""

    path: str
    content: str

    kind = "remember"

    @property
    def key(self) -> str:
        return f"{self.kind} {self.path}"

    def describe(self) -> str:
        return f"remember the policy in {self.path}, for rules show and rules remove"

    def verifies(self) -> str:
        return "the file holds it"

    def record(self, calls: Calls) -> Before:
        try:
            return {"content": Path(self.path).read_text()}
        except FileNotFoundError:
            return {"content": None}

    def apply(self, calls: Calls, before: Before, keep: Keep) -> None:
        calls.replace_file(self.path, self.content.encode())

    def check(self, calls: Calls) -> None:
        if Path(self.path).read_text() != self.content:
            raise StepFailed(f"{self.path} does not hold what was written to it")

    def undo(self, calls: Calls, before: Before) -> str | None:
        if before["content"] is None:
            calls.unlink(self.path)
        elif self.record(calls) != before:
            calls.replace_file(self.path, before["content"].encode())
        return None
