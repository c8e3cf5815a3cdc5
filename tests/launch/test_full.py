# SPDX-License-Identifier: Apache-2.0
"""Leases where /run is full."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuiso.errors import FailedAndUndone
from gpuiso.launch.home import Home
from gpuiso.launch.lease import CgroupId
from gpuiso.launch.start import become_program
from gpuiso.launch.store import Leases, Who
from tests.launch.parts import counted, gpus
from tests.launch.storm import FileCgroups

UNITS = gpus(2)
WHO = Who("job", 0, "root", ("job",))


@dataclass
class Disk:
    """Takes ``room`` bytes of a file that has fewer."""

    room: int = 1 << 20

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        return os.pwritev(fd, [data[: max(self.room, os.fstat(fd).st_size)]], offset)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    found = Disk()
    monkeypatch.setattr("gpuiso.launch.store.os.pwrite", found.pwrite)
    return found


@pytest.fixture
def leases(tmp_path: Path) -> Leases:
    return Leases(FileCgroups(tmp_path), tmp_path / "leases")


@pytest.mark.parametrize(
    ("room", "file"), [(0, "sequence"), (10, "sequence"), (30, r"\d+\.ticket"), (200, r"\d+\.lease")]
)
def test_what_cannot_be_written_is_not_leased(leases: Leases, disk: Disk, room: int, file: str) -> None:
    disk.room = room
    before = os.listdir("/proc/self/fd")
    words = f"/{file} cannot be written: No space left on device; no GPU stays leased$"
    with pytest.raises(FailedAndUndone, match=words):
        leases.take(counted(2, UNITS), UNITS, WHO)
    assert len(os.listdir("/proc/self/fd")) == len(before)
    assert {path.name for path in leases.directory.iterdir()} <= {"lock", "sequence"}
    disk.room = 1 << 20
    leases.take(counted(2, UNITS), UNITS, WHO).release()


def test_a_lease_that_cannot_be_bound_stays_one(leases: Leases, disk: Disk) -> None:
    held = leases.take(counted(2, UNITS), UNITS, WHO)
    disk.room = 10
    with pytest.raises(FailedAndUndone, match="No space left on device"):
        held.bind(CgroupId("/sys/fs/cgroup", "/" + "long" * 50, 1, "boot"))
    # It is no damaged one, which would stop every other launch, and ends with its launcher.
    ((lease,), _) = leases.listing()
    assert lease.cgroup is None
    held.close()
    assert leases.listing() == ([], [])


def test_a_start_that_a_full_disk_stops_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """126 would say that the program cannot be run."""

    def full(_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("gpuiso.launch.start._enter_cgroup", full)
    home = Home("job", "/sys/fs/cgroup", "/")
    start: Any = SimpleNamespace(home=home, private_dev=False, program="/bin/true")
    words = "^the program was not started: the cgroup /job: No space left on device$"
    with pytest.raises(FailedAndUndone, match=words):
        become_program(start)
