# SPDX-License-Identifier: Apache-2.0
"""Many launchers at once, some of them killed: forked children that lease GPUs, use them for a moment, and end.

Each GPU has a witness file that leases know nothing of. Who has a GPU locks its witness; if somebody else holds that
lock, two have the GPU. Only a process that is ending does not count: the kernel drops its locks one by one, the latest
first (task_work_run in kernel/task_work.c), so that of its lease before that of the witness.
"""

from __future__ import annotations

import fcntl
import os
import random
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpuiso.errors import GpuisoError
from gpuiso.grants.units import Unit
from gpuiso.launch.lease import CgroupId
from gpuiso.launch.store import Held, Leases, Who
from tests.launch.parts import counted

__all__ = ["FileCgroups", "Storm", "storm"]

_PF_EXITING = 0x4  # include/linux/sched.h

Enter = Callable[[int, Held], CgroupId]
"""Puts the calling process into a cgroup of its own, by number, and tells which."""


class FileCgroups:
    """Cgroups that are files: whoever is in one holds its lock, which the kernel drops as it empties a cgroup."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def enter(self, number: int, held: Held) -> CgroupId:
        path = self.directory / str(number)
        fd = os.open(path, os.O_RDWR | os.O_CREAT)
        fcntl.flock(fd, fcntl.LOCK_EX)
        return CgroupId(str(self.directory), f"/{number}", os.fstat(fd).st_ino, "boot", ours=True)

    def populated(self, cgroup: CgroupId) -> bool:
        try:
            fd = os.open(cgroup.directory, os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False

    def discard(self, cgroup: CgroupId) -> None:
        Path(cgroup.directory).unlink(missing_ok=True)


@dataclass
class Storm:
    """What happened. ``granted`` are ticket number, time of the grant and units of each lease, by time."""

    granted: list[tuple[int, int, list[str]]] = field(default_factory=list)
    killed: int = 0
    failures: list[str] = field(default_factory=list)


def storm(
    leases: Leases,
    units: Sequence[Unit],
    place: Path,
    enter: Enter,
    *,
    launches: int,
    at_once: int,
    kill: float,
    most: int = 3,
    seed: int = 1,
) -> Storm:
    """``kill`` is the part of launchers that get SIGKILL at a random moment, ``most`` the GPUs that one asks for."""
    source = random.Random(seed)
    found = Storm()
    log = place / "log"
    running: dict[int, float | None] = {}
    started = 0
    while started < launches or running:
        while started < launches and len(running) < at_once:
            started += 1
            count, nap = source.randint(1, most), source.uniform(0.001, 0.02)
            pid = os.fork()
            if pid == 0:
                _launcher(leases, units, place, enter, started, count, nap)
            doomed = source.random() < kill
            running[pid] = time.monotonic() + source.uniform(0.0, 0.4) if doomed else None
        for pid, end in list(running.items()):
            if end is not None and time.monotonic() > end:
                os.kill(pid, signal.SIGKILL)
                running[pid] = None
        # Each by its id: a child that another test left behind is not this one's.
        ended = [(pid, status) for pid, status in (os.waitpid(pid, os.WNOHANG) for pid in running) if pid]
        if not ended:
            time.sleep(0.002)
        for pid, status in ended:
            del running[pid]
            if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
                found.killed += 1
            elif status != 0:
                found.failures.append(f"launcher {pid} ended with {os.waitstatus_to_exitcode(status)}")
    for line in log.read_text().splitlines():
        word, *rest = line.split()
        if word == "granted":
            found.granted.append((int(rest[0]), int(rest[1]), rest[2:]))
        else:
            found.failures.append(line)
    found.granted.sort(key=lambda entry: entry[1])
    return found


def _launcher(
    leases: Leases, units: Sequence[Unit], place: Path, enter: Enter, number: int, count: int, nap: float
) -> None:
    """Runs in a child; never returns."""
    code = 1
    try:
        witnesses = {unit.id: os.open(place / f"witness-{unit.id}", os.O_RDWR | os.O_CREAT) for unit in units}
        log = os.open(place / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        who = Who(f"job-{number}", number % 5, f"user{number % 5}", ("job",))
        held = leases.take(counted(count, units), units, who, wait=120.0)
        mine = [unit for unit, _ in held.lease.units]
        os.write(log, f"granted {held.lease.id} {held.lease.granted} {' '.join(mine)}\n".encode())
        for unit in mine:
            if not _is_alone(witnesses[unit]):
                os.write(log, f"{unit} was given to job-{number} while somebody had it\n".encode())
        held.bind(enter(number, held))
        held.close()  # as execve does
        time.sleep(nap)
        code = 0
    except (GpuisoError, OSError, ValueError) as error:
        os.write(2, f"{number}: {error!r}\n{traceback.format_exc()}\n".encode())
    finally:
        os._exit(code)


def _is_alone(witness: int) -> bool:
    """Whether nobody has the GPU any more; then the caller has it."""
    while True:
        try:
            fcntl.flock(witness, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not _is_ending(int(os.pread(witness, 20, 0) or b"0")):
                return False
            time.sleep(0.001)
        else:
            os.pwrite(witness, f"{os.getpid():<20}".encode(), 0)
            return True


def _is_ending(pid: int) -> bool:
    try:
        flags = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[6]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return bool(int(flags) & _PF_EXITING)
