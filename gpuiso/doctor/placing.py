# SPDX-License-Identifier: Apache-2.0
"""Findings of processes told as findings of what the processes belong to."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace

from gpuiso.doctor.finding import Evidence, Finding, Target

__all__ = ["alike", "merged", "placed"]

_LISTED = 8  # processes that are named in one line


def placed(finding: Finding, own: Target, asked: Target | None) -> Finding:
    """The finding with a container or unit in its target: those of ``own``, where it names none itself.

    What the user ``asked`` about stands there in any case: a user's unit is told as that unit, not as the user's
    manager that the system knows.
    """
    target = finding.target
    if target.container is None and target.unit is None:
        target = replace(target, container=own.container, unit=own.unit)
    if asked is not None:
        target = replace(target, container=asked.container or target.container, unit=asked.unit or target.unit)
    return finding if target == finding.target else replace(finding, target=target)


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """The findings, those that say the same of several processes of one container or unit made into one."""
    first: dict[Hashable, Finding] = {}
    others: dict[Hashable, list[int]] = {}
    for place, finding in enumerate(findings):
        key = _without_pid(finding)
        if key is None:
            first[place] = finding
        elif key in first and finding.target.pid is not None:
            others.setdefault(key, []).append(finding.target.pid)
        else:
            first[key] = finding
    return [_with_others(finding, others.get(key, ())) for key, finding in first.items()]


def alike(finding: Finding, pids: Sequence[int]) -> Finding:
    """A finding about one process told as one about others as well, which look the same to every check."""
    return _told_of(finding, pids, "that look the same")


def _without_pid(finding: Finding) -> Hashable:
    """What a finding says, whichever process it is about; None if it is not about one of several."""
    target = finding.target
    if target.pid is None or (target.container is None and target.unit is None):
        return None
    own = re.compile(rf"(?<!\d){target.pid}(?!\d)")
    fixes = tuple((own.sub("", fix.text), own.sub("", fix.command or "")) for fix in finding.fix)
    return (
        finding.rule.id,
        finding.severity,
        finding.title,
        own.sub("", finding.cause),
        fixes,
        replace(target, pid=None),
    )


def _with_others(finding: Finding, pids: Iterable[int]) -> Finding:
    return _told_of(finding, pids, "of the same place")


def _told_of(finding: Finding, pids: Iterable[int], which: str) -> Finding:
    numbers = sorted(pids)
    if not numbers:
        return finding
    listed = ", ".join(map(str, numbers[:_LISTED])) + (", ..." if len(numbers) > _LISTED else "")
    more = "1 more process" if len(numbers) == 1 else f"{len(numbers)} more processes"
    evidence = Evidence(f"{more} {which}", f"the same: {listed}")
    return replace(finding, evidence=(*finding.evidence, evidence))
