# SPDX-License-Identifier: Apache-2.0
"""What was done, by whom, to which process: one JSON object a line, each bound to the one before it.

Every line holds its number, the hash of the line before it and its own hash over all else that it holds. So a line
that is changed, removed, inserted or moved is found, with its number. Lines cut off the end leave a chain that is
whole: for that the file ``ledger.head`` beside it holds the last number and hash. Whoever may write both files can
write a new history; a copy of one hash, kept elsewhere, is then what convicts it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuiso.errors import BadInput, GpuisoError, NotFound, NotPermitted

__all__ = ["LEDGER", "Fault", "Ledger", "Verdict"]

LEDGER = Path("/var/log/gpuiso/ledger.jsonl")
_FIRST = "0" * 64


@dataclass(frozen=True, slots=True)
class Fault:
    """``line`` counts from 1."""

    line: int
    says: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """``entries`` is how many lines were read, ``head`` the hash of the last one that belongs to the chain."""

    entries: int
    head: str
    fault: Fault | None


def _open_regular(path: Path, flags: int) -> int:
    """A descriptor of a regular file. A FIFO would be waited for, and a device need not end.

    :raises BadInput: it is something else.
    """
    try:
        fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY, 0o640)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ENODEV):
            raise BadInput("not a ledger: it is no regular file", file=str(path)) from error
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise BadInput("not a ledger: it is no regular file", file=str(path))
    return fd


def _hash(entry: Mapping[str, Any]) -> str:
    text = json.dumps({name: value for name, value in entry.items() if name != "hash"}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


class Ledger:
    """The file at ``path``; it and its directory are made with the first entry."""

    def __init__(self, path: Path = LEDGER) -> None:
        self.path = path
        self._head = path.with_suffix(".head")

    def prepare(self) -> None:
        """:raises NotPermitted: it cannot be written to, and what is not written down is not done."""
        try:
            self.path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            with self._locked(os.O_RDWR | os.O_CREAT):
                pass
        except OSError as error:
            raise NotPermitted(f"the ledger {self.path} cannot be written: {error.strerror}") from error

    @contextlib.contextmanager
    def _locked(self, flags: int) -> Iterator[int]:
        fd = _open_regular(self.path, flags)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX if flags & os.O_RDWR else fcntl.LOCK_SH)
            yield fd
        finally:
            os.close(fd)

    def append(self, event: str, details: Mapping[str, Any]) -> None:
        """Adds an entry; returns when it is on disk.

        A line that a crash cut off is moved into an entry of its own, so that the chain stays whole.

        :raises GpuisoError: it cannot be written.
        """
        try:
            self._append(event, details)
        except OSError as error:
            raise GpuisoError(f"the ledger {self.path} cannot be written: {error.strerror}") from error

    def _append(self, event: str, details: Mapping[str, Any]) -> None:
        self.path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        with self._locked(os.O_RDWR | os.O_CREAT) as fd:
            size, last, torn = _tail(fd)
            if torn:
                os.ftruncate(fd, size)
                last = self._write(fd, size, last, "torn", {"text": torn.decode("utf-8", "replace")})
                size = os.fstat(fd).st_size
            last = self._write(fd, size, last, event, details)
            self._write_head(last)

    def _write(
        self, fd: int, size: int, last: Mapping[str, Any], event: str, details: Mapping[str, Any]
    ) -> dict[str, Any]:
        entry = {
            "seq": last["seq"] + 1,
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "event": event,
            **details,
            "prev": last["hash"],
        }
        entry["hash"] = _hash(entry)
        os.pwrite(fd, json.dumps(entry).encode() + b"\n", size)
        os.fsync(fd)
        return entry

    def _write_head(self, last: Mapping[str, Any]) -> None:
        partial = self._head.with_suffix(".head.partial")
        fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640)
        with open(fd, "w") as file:
            file.write(json.dumps({"seq": last["seq"], "hash": last["hash"]}))
            file.flush()
            os.fsync(file.fileno())
        os.rename(partial, self._head)

    def entries(self) -> Iterator[dict[str, Any]]:
        """The entries in order, unverified. :raises BadInput: a line is not JSON."""
        for number, line in enumerate(self._lines(), 1):
            try:
                found: dict[str, Any] = json.loads(line)
            except ValueError as error:
                raise BadInput("not an entry of a ledger", file=str(self.path), line=number) from error
            yield found

    def _lines(self) -> list[bytes]:
        try:
            with self._locked(os.O_RDONLY) as fd, open(fd, "rb", closefd=False) as file:
                return file.read().splitlines()
        except FileNotFoundError as error:
            raise NotFound(f"no ledger {self.path}: nothing has been done yet, or it was removed") from error
        except PermissionError as error:
            raise NotPermitted(f"the ledger {self.path} cannot be read", hint="run it as root") from error

    def verify(self) -> Verdict:
        """Follows the chain.

        :raises NotFound: there is no ledger. :raises NotPermitted: it may not be read. :raises BadInput: it is no file.
        """
        lines = self._lines()
        last: Mapping[str, Any] = {"seq": 0, "hash": _FIRST}
        hashes = {0: _FIRST}
        for number, line in enumerate(lines, 1):
            says = _fault(line, last)
            if says is not None:
                return Verdict(len(lines), last["hash"], Fault(number, says))
            last = json.loads(line)
            hashes[last["seq"]] = last["hash"]
        return Verdict(len(lines), last["hash"], self._cut(len(lines), hashes))

    def _cut(self, count: int, hashes: Mapping[int, str]) -> Fault | None:
        """What the head says against the end of the chain. It is one entry behind if a crash came between."""
        try:
            with open(_open_regular(self._head, os.O_RDONLY), "rb") as file:
                head = json.loads(file.read())
            seq, value = int(head["seq"]), head["hash"]
        except FileNotFoundError:
            return (
                None
                if not count
                else Fault(count + 1, f"{self._head} is missing: whether lines were cut off the end cannot be told")
            )
        except (ValueError, KeyError, TypeError, BadInput):
            return Fault(count + 1, f"{self._head} is damaged: whether lines were cut off the end cannot be told")
        if seq > count:
            missing = "1 entry is" if seq - count == 1 else f"{seq - count} entries are"
            return Fault(count + 1, f"{missing} missing at the end")
        if hashes[seq] != value:
            return Fault(seq, "it is not the entry that was written: the chain was written anew up to here")
        return None


def _fault(line: bytes, last: Mapping[str, Any]) -> str | None:
    try:
        entry = json.loads(line)
        seq, prev, own = entry["seq"], entry["prev"], entry["hash"]
    except (ValueError, KeyError, TypeError):
        return "it is not an entry"
    if seq != last["seq"] + 1:
        return f"it has number {seq}, where {last['seq'] + 1} has to come: entries were removed or put in"
    if prev != last["hash"]:
        return "it does not follow the line before it: one of the two was exchanged"
    if own != _hash(entry):
        return "it was changed after it was written"
    return None


def _tail(fd: int) -> tuple[int, Mapping[str, Any], bytes]:
    """Where whole lines end, the last of them, and what comes after."""
    with open(fd, "rb", closefd=False) as file:
        end = file.seek(0, os.SEEK_END)
        start = max(0, end - (1 << 20))  # an entry is far smaller
        file.seek(start)
        data = file.read()
    whole, newline, torn = data.rpartition(b"\n")
    if not newline:
        return start, {"seq": 0, "hash": _FIRST}, torn
    line = whole.rpartition(b"\n")[2]
    try:
        last = json.loads(line)
        return end - len(torn), {"seq": int(last["seq"]), "hash": str(last["hash"])}, torn
    except (ValueError, KeyError, TypeError):
        # A damaged ledger still takes entries: verify() names the damaged line, and the chain goes on from its hash.
        digest = hashlib.sha256(line).hexdigest()
        return end - len(torn), {"seq": data.count(b"\n"), "hash": digest}, torn
