# SPDX-License-Identifier: Apache-2.0
"""What the doctor says: rules, and findings made from them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["Evidence", "Finding", "Fix", "NotExamined", "Rule", "Severity", "Target"]

Severity = Literal["error", "warning", "info"]


@dataclass(frozen=True, slots=True)
class Evidence:
    """One thing that was read: where (a path, a command, a variable of a process) and what it says."""

    source: str
    says: str


@dataclass(frozen=True, slots=True)
class Fix:
    """What to do. ``command`` is one shell line, or None where no single command does it."""

    text: str
    command: str | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """What a finding is about; None means that this does not apply."""

    pid: int | None = None
    cgroup: str | None = None
    container: str | None = None
    unit: str | None = None
    gpu: str | None = None

    def as_json(self) -> dict[str, Any]:
        names = ("pid", "cgroup", "container", "unit", "gpu")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


_MOST = 2000  # characters of one text
_MOST_WORD = 700  # characters without a blank: the UUIDs of sixteen GPUs
_MOST_COMMAND = 8000
_LONG_WORD = re.compile(rf"\S{{{_MOST_WORD + 1},}}")


def _cut(text: str) -> str:
    if len(text) <= _MOST_WORD:
        return text
    text = _LONG_WORD.sub(lambda match: f"{match[0][:_MOST_WORD]}…", text)
    return text if len(text) <= _MOST else f"{text[:_MOST]}…"


def _cut_fix(fix: Fix) -> Fix:
    if fix.command is None or len(fix.command) <= _MOST_COMMAND:
        return Fix(_cut(fix.text), fix.command)
    return Fix(f"{_cut(fix.text)} (the command is too long to be shown)")


@dataclass(frozen=True, slots=True)
class Rule:
    """A root cause that the doctor knows. ``summary`` is one line; ``sources`` are pages where it is documented."""

    id: str
    severity: Severity
    title: str
    summary: str
    sources: tuple[str, ...] = ()

    def finding(
        self,
        cause: str,
        *,
        evidence: Iterable[Evidence],
        fix: Iterable[Fix] = (),
        target: Target | None = None,
        severity: Severity | None = None,
        title: str | None = None,
    ) -> Finding:
        """A finding of this rule; ``severity`` and ``title`` override the rule's own where a case is special.

        What a stranger wrote may be in any text, and may be megabytes: it is cut here.
        """
        return Finding(
            self,
            severity or self.severity,
            _cut(title or self.title),
            _cut(cause),
            tuple(Evidence(_cut(each.source), _cut(each.says)) for each in evidence),
            tuple(_cut_fix(each) for each in fix),
            target or Target(),
        )


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that was found to hold. ``evidence`` is never empty: it names what was read."""

    rule: Rule
    severity: Severity
    title: str
    cause: str
    evidence: tuple[Evidence, ...]
    fix: tuple[Fix, ...] = ()
    target: Target = field(default_factory=Target)

    def __post_init__(self) -> None:
        if not self.evidence:
            raise ValueError(f"{self.rule.id}: a finding without evidence")

    def as_json(self) -> dict[str, Any]:
        """The object that the design page's contract describes."""
        return {
            "rule": self.rule.id,
            "severity": self.severity,
            "title": self.title,
            "cause": self.cause,
            "evidence": [{"source": e.source, "says": e.says} for e in self.evidence],
            "fix": [
                {"text": f.text} if f.command is None else {"text": f.text, "command": f.command} for f in self.fix
            ],
            "target": self.target.as_json(),
            "sources": list(self.rule.sources),
        }


@dataclass(frozen=True, slots=True)
class NotExamined:
    """Rules that could not be decided, because ``what`` could not be known: ``why``."""

    rules: tuple[str, ...]
    what: str
    why: str
    pid: int | None = None

    def as_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {"rules": list(self.rules), "what": self.what, "why": self.why}
        if self.pid is not None:
            found["pid"] = self.pid
        return found
