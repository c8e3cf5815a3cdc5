# SPDX-License-Identifier: Apache-2.0
"""What exists of a lab outside its namespaces, and how to remove it: a cgroup tree and one process that ends all.

A state file is written before anything is made, so whoever comes next can finish what an aborted run left.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import time
from pathlib import Path

from tests.lab.errors import LabError

# Not in the cache: neither processes nor cgroups survive a reboot.
STATE_DIR = Path("/run/gpuiso-lab")


@dataclasses.dataclass(frozen=True)
class Process:
    """A process that cannot be mistaken for a later one of the same number."""

    pid: int
    start: int
    """Clock ticks between boot and its start: field 22 of /proc/PID/stat."""

    @classmethod
    def of(cls, pid: int) -> Process:
        """Raises FileNotFoundError or ProcessLookupError when there is none."""
        stat = Path("/proc", str(pid), "stat").read_text()
        return cls(pid, int(stat.rpartition(")")[2].split()[19]))

    def alive(self) -> bool:
        try:
            stat = Path("/proc", str(self.pid), "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return False
        fields = stat.rpartition(")")[2].split()
        return int(fields[19]) == self.start and fields[0] not in "ZX"

    def kill(self) -> None:
        """SIGKILL it, and nothing else, if it still lives."""
        try:
            pidfd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        try:
            # The descriptor holds the process it was opened for; only now does its start time prove which.
            if self.alive():
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        except ProcessLookupError:
            pass
        finally:
            os.close(pidfd)


@dataclasses.dataclass
class State:
    """One lab, as its state file holds it."""

    name: str
    owner: Process
    cgroup: Path
    init: Process | None = None

    @property
    def file(self) -> Path:
        return STATE_DIR / f"{self.name}.json"

    def save(self) -> None:
        STATE_DIR.mkdir(mode=0o700, exist_ok=True)
        text = json.dumps(dataclasses.asdict(self) | {"cgroup": str(self.cgroup)})
        partial = self.file.with_suffix(".partial")
        partial.write_text(text)
        partial.rename(self.file)

    @classmethod
    def load(cls, file: Path) -> State:
        fields = json.loads(file.read_text())
        init = Process(**fields["init"]) if fields["init"] else None
        return cls(fields["name"], Process(**fields["owner"]), Path(fields["cgroup"]), init)

    def end(self) -> None:
        """End every process of the lab, remove its cgroups and forget it. May be called again."""
        if self.init is not None:
            self.init.kill()
        with contextlib.suppress(FileNotFoundError):  # removed before, or by another process just now
            remove_cgroup_tree(self.cgroup)
        self.file.unlink(missing_ok=True)


def states() -> list[State]:
    """Every lab that has not been ended in an orderly way, running ones included."""
    found = []
    for file in sorted(STATE_DIR.glob("*.json")):
        with contextlib.suppress(FileNotFoundError):  # ended by another process just now
            found.append(State.load(file))
    return found


def sweep() -> list[State]:
    """End the labs whose owner is gone; returns them."""
    dead = [state for state in states() if not state.owner.alive()]
    for state in dead:
        state.end()
    return dead


def remove_cgroup_tree(top: Path, seconds: float = 15.0) -> None:
    """Kill what is in a cgroup2 tree and remove it, leaves first.

    Raises FileNotFoundError when there is none, :class:`LabError` if it stays populated.
    """
    deadline = time.monotonic() + seconds
    with contextlib.suppress(FileNotFoundError):
        (top / "cgroup.kill").write_text("1")
    while "populated 1" in (top / "cgroup.events").read_text():
        if time.monotonic() > deadline:
            raise LabError(f"processes in {top} do not end")
        time.sleep(0.01)
    for directory, _, _ in os.walk(top, topdown=False):
        # A task that has just died may keep its cgroup busy for a moment after it has left the count.
        while True:
            try:
                os.rmdir(directory)
                break
            except FileNotFoundError:
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
