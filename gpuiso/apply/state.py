# SPDX-License-Identifier: Apache-2.0
"""The directory that gpuiso keeps while the host is up: the lock, the journals, what was applied.

::

    /run/gpuiso/lock                 held (flock) by the one process that changes something
    /run/gpuiso/journal/NAME.jsonl   a change under way; one that is there without the lock was interrupted
    /run/gpuiso/policies/NAME.json   what was applied to a cgroup or unit, and what was there before
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpuiso.apply.waiting import tell_waits
from gpuiso.errors import BadInput, NotPermitted, TimedOut

__all__ = ["RUN_DIRECTORY", "State", "read_kept"]

RUN_DIRECTORY = Path("/run/gpuiso")
_MAX_KEPT = 64 << 20  # bytes; the largest program a kernel takes is 16 MiB of hexadecimal digits
_SILENCE = 1.0  # seconds of waiting before it is said
_LOCK_DEADLINE = 30.0  # seconds; a change takes milliseconds, one with jobs of systemd some seconds


class State:
    """``directory`` is made when something is written, for its owner alone."""

    def __init__(self, directory: Path = RUN_DIRECTORY) -> None:
        self.directory = directory
        self.journals = directory / "journal"
        self.policies = directory / "policies"

    def prepare(self) -> None:
        """:raises NotPermitted: the directory cannot be made or written to.

        :raises BadInput: something that is no directory is in its place.
        """
        try:
            for path in (self.directory, self.journals, self.policies):
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
            writable = os.access(self.journals, os.W_OK, effective_ids=True)
        except PermissionError:
            writable = False
        except (FileExistsError, NotADirectoryError) as error:
            hint = "move it away: gpuiso makes the directory anew"
            raise BadInput("is not a directory", file=str(error.filename), hint=hint) from error
        except OSError as error:
            if error.errno != errno.EROFS:
                raise
            writable = False
        if not writable:
            raise NotPermitted(
                f"{self.directory} cannot be written to, and without a journal nothing is changed",
                hint="run it as root; --dry-run shows the plan without",
            )

    @contextmanager
    def lock(self, deadline: float = _LOCK_DEADLINE) -> Iterator[None]:
        """Hold the lock. :raises TimedOut: somebody else holds it for longer than ``deadline`` seconds."""
        self.prepare()
        fd = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            self._wait(fd, deadline)
            yield
        finally:
            os.close(fd)

    def _wait(self, fd: int, deadline: float) -> None:
        began = time.monotonic()
        tell = tell_waits.get()
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                waited = time.monotonic() - began
                if tell is not None and waited > _SILENCE:
                    tell(f"waiting for another gpuiso, which has {self.directory}/lock and is changing something")
                    tell = None
                if waited > deadline:
                    raise TimedOut(
                        f"another gpuiso has been changing something for more than {deadline:g} s",
                        hint=f"fuser {self.directory}/lock names its process",
                    ) from None
            time.sleep(0.01)

    def new_journal(self) -> Path:
        """A path that no journal has."""
        return self.journals / f"{time.time_ns()}-{os.getpid()}.jsonl"

    def interrupted(self) -> list[Path]:
        """The journals that are there, oldest first. With the lock held, each is of a change that did not end."""
        try:
            return sorted(self.journals.glob("*.jsonl"))
        except PermissionError as error:
            raise NotPermitted(f"{self.journals} cannot be read", hint="run it as root") from error

    def policy(self, target: str) -> Path:
        """Where the policy of a target is kept."""
        return self.policies / f"{hashlib.sha256(target.encode()).hexdigest()[:32]}.json"


def read_kept(path: Path, *, hint: str | None = None) -> bytes | None:
    """The bytes of a file that gpuiso keeps; None if there is none. ``hint`` goes with a BadInput.

    :raises BadInput: it is no regular file, or larger than any that gpuiso writes.
    :raises NotPermitted: only root may read it.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        raise NotPermitted(f"{path} cannot be read", hint="run it as root, who keeps what was applied") from error
    except OSError as error:
        raise BadInput(f"is not a file of gpuiso: {error.strerror}", file=str(path), hint=hint) from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise BadInput("is not a regular file", file=str(path), hint=hint)
    with open(fd, "rb") as file:
        data = file.read(_MAX_KEPT + 1)
    if len(data) > _MAX_KEPT:
        raise BadInput(f"is larger than {_MAX_KEPT >> 20} MiB", file=str(path), hint=hint)
    return data
