# SPDX-License-Identifier: Apache-2.0
"""What the doctor finds in a record made for a test."""

from __future__ import annotations

from gpuiso.doctor.engine import examine
from gpuiso.doctor.finding import Finding
from tests.records import RecordMaker

__all__ = ["found", "map_files", "severities"]


def found(maker: RecordMaker, rule: str, pid: int | None = None) -> list[Finding]:
    """The findings of one rule, most severe first."""
    return [finding for finding in examine(maker.host(), pid=pid).findings if finding.rule.id == rule]


def severities(maker: RecordMaker, pid: int | None = None) -> list[tuple[str, str]]:
    """Every finding, as rule and severity."""
    return [(finding.rule.id, finding.severity) for finding in examine(maker.host(), pid=pid).findings]


def map_files(maker: RecordMaker, pid: int, *paths: str) -> None:
    """Records what a process has mapped."""
    lines = (f"7f0000000000-7f0000001000 r-xp 00000000 08:01 {n} {path}\n" for n, path in enumerate(paths, 1))
    maker.files[f"/proc/{pid}/maps"] = "".join(lines)
