# SPDX-License-Identifier: Apache-2.0
"""What is reclaimed: a file a process below /run/gpuiso/reclaimed, gone with the boot as the processes are.

A record is on disk (fsync of the file and its directory) before the step that it speaks of begins, so that a gpuiso
that is killed anywhere leaves a file from which ``gpuiso recover`` knows what may have happened. Who works on a
process holds a lock (flock) on its record's lock file; an unfinished record whose lock is free was interrupted.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from gpuiso.apply.state import RUN_DIRECTORY
from gpuiso.errors import BadInput, GpuisoError, NotPermitted

__all__ = ["Busy", "Phase", "Record", "Records"]

_FORMAT = "gpuiso-reclaimed/1"
_NAME = re.compile(r"(\d+)-(\d+)\.json")

Phase = Literal[
    "reclaiming",  # on the way: RUNNING, LOCKED or CHECKPOINTED, and recovery leads back to RUNNING
    "reclaimed",  # the GPU is free, the process keeps its data in host memory
    "restoring",  # on the way back: recovery leads on to RUNNING
    "confining",  # on the way into a scope: recovery leads back
    "scope",  # moved into a scope with rules, nothing else
]


@dataclass(frozen=True)
class Record:
    """One process. ``job`` names what was reclaimed together, ``gate`` is what its gate needs to open again.

    ``memory`` is bytes by GPU UUID before, ``gpus`` are the UUIDs of the GPUs that were closed to it. ``time`` is
    seconds since the epoch.
    """

    pid: int
    start_time: int
    comm: str
    job: str
    phase: Phase
    time: float
    gpus: tuple[str, ...] = ()
    memory: dict[str, int | None] = field(default_factory=dict)
    frozen: bool = False
    gate: dict[str, Any] | None = None

    @property
    def finished(self) -> bool:
        """Whether it speaks of a state that is meant to last."""
        return self.phase in ("reclaimed", "scope")

    @property
    def footprint(self) -> int | None:
        """Bytes on all GPUs together, None if that was not known."""
        if not self.memory or None in self.memory.values():
            return None
        return sum(used or 0 for used in self.memory.values())

    def with_phase(self, phase: Phase, **changes: Any) -> Record:
        return replace(self, phase=phase, **changes)


class Busy(GpuisoError):
    """Another gpuiso works on the process."""

    code = "busy"


class Records:
    """The directory. It is made, for its owner alone, when something is written."""

    def __init__(self, directory: Path = RUN_DIRECTORY / "reclaimed") -> None:
        self.directory = directory

    def _path(self, pid: int, start: int) -> Path:
        return self.directory / f"{pid}-{start}.json"

    def prepare(self) -> None:
        """:raises NotPermitted: it cannot be written to, and without records nothing is reclaimed."""
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            writable = os.access(self.directory, os.W_OK, effective_ids=True)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            writable = False
        if not writable:
            raise NotPermitted(
                f"{self.directory} cannot be written to, and what is reclaimed must be remembered",
                hint="run it as root; --dry-run shows what would happen without",
            )

    def write(self, record: Record) -> None:
        """Returns when it is on disk."""
        path = self._path(record.pid, record.start_time)
        partial = path.with_suffix(".partial")
        data = json.dumps({"format": _FORMAT, **asdict(record)}).encode()
        fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with open(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.rename(partial, path)
        self._sync()

    def remove(self, record: Record) -> None:
        """The process is as before, or gone."""
        path = self._path(record.pid, record.start_time)
        for each in (path, path.with_suffix(".lock")):
            with contextlib.suppress(FileNotFoundError):
                each.unlink()
        self._sync()

    def _sync(self) -> None:
        directory = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def find(self, pid: int, start: int | None = None) -> Record | None:
        """The record of a process; with several of one number, the one that started last."""
        found = [r for r in self.all() if r.pid == pid and start in (None, r.start_time)]
        return max(found, key=lambda r: r.start_time, default=None)

    def all(self) -> tuple[Record, ...]:
        """Every record, by pid. :raises BadInput: a file is damaged. :raises NotPermitted: they may not be read."""
        try:
            names = sorted(path for path in self.directory.iterdir() if _NAME.fullmatch(path.name))
        except FileNotFoundError:
            return ()
        except PermissionError as error:
            raise NotPermitted(f"{self.directory} cannot be read", hint="run it as root") from error
        found = []
        for path in names:
            with contextlib.suppress(FileNotFoundError):  # removed while we read
                found.append(_read(path))
        return tuple(sorted(found, key=lambda record: (record.pid, record.start_time)))

    @contextlib.contextmanager
    def lock(self, pid: int, start: int) -> Iterator[None]:
        """Holds a process against another gpuiso. :raises Busy: one works on it."""
        self.prepare()
        path = self._path(pid, start).with_suffix(".lock")
        while True:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                raise Busy(f"another gpuiso works on process {pid} at this moment") from None
            if _is_file(fd, path):
                break
            os.close(fd)  # its last holder removed it between our open and our lock
        try:
            yield
        finally:
            if not self._path(pid, start).exists():
                path.unlink(missing_ok=True)
            os.close(fd)


def _is_file(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except FileNotFoundError:
        return False


def _read(path: Path) -> Record:
    try:
        found = json.loads(path.read_bytes())
        if found.pop("format") != _FORMAT:
            raise ValueError("another format")
        found["gpus"] = tuple(found["gpus"])
        return Record(**found)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"not a record of what is reclaimed: {error}", file=str(path)) from error
