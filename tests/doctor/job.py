# SPDX-License-Identifier: Apache-2.0
"""Processes on a small recorded host, and which rules find something about them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpuiso.doctor.engine import examine
from gpuiso.doctor.finding import Finding
from tests.records import RecordMaker

__all__ = ["PID", "Job", "alarms"]

PID = 4242


class Job(RecordMaker):
    """Two GPUs and a process with the given environment below a parent of its own."""

    def __init__(self, directory: Path, env: Mapping[str, str] | None = None) -> None:
        super().__init__(directory)
        self.tools["nvml.json"] = {"driver_version": "580.159.04", "gpus": []}
        if env is not None:
            self.add(PID, env)

    def add(self, pid: int, env: Mapping[str, str], *, comm: str = "python3", ppid: int = 1, **more: Any) -> None:
        """A process with a name and a parent; ``more`` as for ``add_process``."""
        self.add_process(pid, env, **more)
        base = f"/proc/{pid}"
        self.files[f"{base}/status"] = str(self.files[f"{base}/status"]).replace("PPid:\t1", f"PPid:\t{ppid}")
        self.files[f"{base}/comm"] = f"{comm}\n"
        self.nodes[f"{base}/ns/mnt"] = {"path": f"{base}/ns/mnt", "type": "l", "target": "mnt:[4026531841]"}
        if not any(path.startswith(f"{base}/fd/") for path in self.nodes):
            self.nodes[f"{base}/fd/0"] = {"path": f"{base}/fd/0", "type": "l", "target": "/dev/null"}

    def findings(self, *, asked: bool = True, pid: int = PID) -> tuple[Finding, ...]:
        return examine(self.host(), pid=pid if asked else None).findings

    def rules(self, *prefixes: str, asked: bool = True, pid: int = PID) -> dict[str, str]:
        """Severities by rule id, of the rules whose ids begin like one of ``prefixes``."""
        wanted = prefixes or ("GPU-CVD-", "GPU-ENV-", "GPU-MIG-", "GPU-UUID-", "GPU-NVML-", "GPU-DRIVER-CAPS")
        return {
            finding.rule.id: finding.severity
            for finding in self.findings(asked=asked, pid=pid)
            if finding.rule.id.startswith(wanted)
        }


def alarms(found: Mapping[str, str]) -> dict[str, str]:
    """What is an error or a warning."""
    return {rule: severity for rule, severity in found.items() if severity != "info"}
