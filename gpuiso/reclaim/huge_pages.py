# SPDX-License-Identifier: Apache-2.0
"""Transparent huge pages for the time of a copy, put back whatever happens.

The driver's copy is as fast as the kernel hands out host memory, and in pages of 4 KiB that is slow: with ``always``
a checkpoint takes two thirds of the time. The setting is the whole machine's, so what it was is on disk before it is
changed, with the processes that need it changed; the last of them, or ``gpuiso recover``, puts it back.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpuiso.apply.state import RUN_DIRECTORY
from gpuiso.errors import GpuisoError, NotSupported
from gpuiso.host.files import read_file
from gpuiso.host.process import start_time
from gpuiso.host.protocol import Host
from gpuiso.reclaim.session import uninterrupted

__all__ = ["SETTING", "HugePages"]

SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")


class HugePages:
    """``setting`` is the kernel's file, ``directory`` holds the journal."""

    def __init__(self, host: Host, setting: Path = SETTING, directory: Path = RUN_DIRECTORY) -> None:
        self.host = host
        self.setting = setting
        self._journal = directory / "huge-pages.json"
        self._lock = directory / "huge-pages.lock"

    def current(self) -> str:
        """The word in brackets. :raises NotSupported: this kernel has no transparent huge pages."""
        text = (read_file(str(self.setting)) or b"").decode()
        for word in text.split():
            if word.startswith("["):
                return word.strip("[]")
        raise NotSupported(f"{self.setting} is not there: this kernel has no transparent huge pages")

    @contextmanager
    def always(self) -> Iterator[None]:
        """For the length of a with block. :raises GpuisoError: the setting cannot be changed."""
        me = [os.getpid(), start_time(self.host, os.getpid())]
        with uninterrupted(), self._locked():
            found = self._read()
            was = self.current() if found is None else found["was"]
            users = [] if found is None else self._alive(found["users"])
            if was != "always":
                self._write({"was": was, "users": [*users, me]})
                try:
                    self._set("always")
                except GpuisoError:
                    if not users:
                        self._journal.unlink()
                    raise
        try:
            yield
        finally:
            with uninterrupted(), self._locked():
                self._leave(me)

    def put_back(self) -> list[str]:
        """After a crash: what was done, in plain words."""
        if not self._journal.exists():
            return []
        with self._locked():
            return self._leave(None)

    def _leave(self, me: list[int] | None) -> list[str]:
        found = self._read()
        if found is None:
            return []
        users = [user for user in self._alive(found["users"]) if user != me]
        if users:
            self._write({**found, "users": users})
            return []
        self._set(found["was"])
        self._journal.unlink()
        return [f"set {self.setting} back to {found['was']}"]

    def _alive(self, users: list[list[int]]) -> list[list[int]]:
        return [user for user in users if self._lives(*user)]

    def _lives(self, pid: int, start: int) -> bool:
        try:
            return start_time(self.host, pid) == start
        except GpuisoError:
            return False

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._lock.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _read(self) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads(self._journal.read_bytes())
        except FileNotFoundError:
            return None
        return found

    def _write(self, found: dict[str, Any]) -> None:
        partial = self._journal.with_suffix(".partial")
        fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with open(fd, "w") as file:
            json.dump(found, file)
            file.flush()
            os.fsync(file.fileno())
        os.rename(partial, self._journal)

    def _set(self, word: str) -> None:
        try:
            self.setting.write_text(word)
        except OSError as error:
            raise GpuisoError(f"{self.setting} cannot be set to {word}: {error.strerror}") from error
