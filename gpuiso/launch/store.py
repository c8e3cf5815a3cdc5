# SPDX-License-Identifier: Apache-2.0
"""The directory of leases.

::

    /run/gpuiso/leases/lock          held (flock) by whoever reads or changes what follows
    /run/gpuiso/leases/sequence      the number of the last arrival
    /run/gpuiso/leases/NAME.lease    a lease
    /run/gpuiso/leases/N.ticket      one who waits; the launcher holds a lock on the file as long as it does

A lease lives while its launcher holds the lock on its file, or while a process is in the cgroup that it is bound to.
The kernel drops a lock when its holder dies and empties a cgroup when its last process does, so nothing has to be
told that a launcher or a workload is gone: whoever looks next finds it, and takes the file away. A launcher binds the
lease to the cgroup that it is in before it becomes the workload, so the two conditions overlap.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from gpuiso.apply.state import RUN_DIRECTORY
from gpuiso.errors import BadInput, FailedAndUndone, NotFound, NotPermitted
from gpuiso.grants.spec import Request
from gpuiso.grants.units import Unit
from gpuiso.launch.choose import choose
from gpuiso.launch.lease import CgroupId, Lease, Ticket

__all__ = ["LEASES", "Held", "Leases", "Liveness", "Who"]

LEASES = RUN_DIRECTORY / "leases"
_LOOK, _LAST_LOOK = 0.02, 0.25  # seconds between looks of the first of those who wait, and of others at most
_PATIENT = 10.0  # seconds after which one looks less often
_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class Liveness(Protocol):
    """What must be known of cgroups."""

    def populated(self, cgroup: CgroupId) -> bool:
        """Whether a process is in it."""

    def discard(self, cgroup: CgroupId) -> None:
        """Take away what was made for a lease that ended."""


@dataclass(frozen=True)
class Who:
    """For whom GPUs are leased. ``most`` is how many the user may have at a time, ``cgroup`` one still to be made."""

    name: str
    user: int
    user_name: str
    command: tuple[str, ...]
    most: int | None = None
    gpu_max: str | None = None
    gpu_memory: str | None = None
    cgroup: CgroupId | None = None


class Held:
    """A lease that this process holds. It ends with :meth:`close` unless it is bound to a cgroup with processes."""

    def __init__(self, leases: Leases, lease: Lease, path: Path, fd: int) -> None:
        self.lease = lease
        self._leases = leases
        self._path = path
        self._fd = fd

    def bind(self, cgroup: CgroupId) -> None:
        """From now on the lease lives as long as somebody is in ``cgroup``."""
        with self._leases.locked():
            known = _read_lease(self._path)
            if known is not None and known.cgroup is not None:  # handed on by one that ended meanwhile
                cgroup = replace(cgroup, made=tuple({*cgroup.made, *known.cgroup.made}))
            self.lease = replace(self.lease, cgroup=cgroup, pid=os.getpid())
            _write(self._fd, self._path, self.lease.as_text())

    def release(self) -> None:
        """Give the GPUs back."""
        with self._leases.locked():
            _unlink(self._path)
        self.close()

    def close(self) -> None:
        """Let go of the lock, as the end of the process does, and execve(2)."""
        os.close(self._fd)


class Leases:
    """``liveness`` tells about cgroups; ``directory`` is made when it is needed."""

    def __init__(self, liveness: Liveness, directory: Path = LEASES) -> None:
        self.directory = directory
        self._liveness = liveness

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock. :raises NotPermitted: the directory may not be written to."""
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(self.directory / "lock", _FLAGS | os.O_CREAT, 0o600)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            hint = "run it as root, who keeps the leases"
            raise NotPermitted(f"{self.directory} may not be written to: {error.strerror}", hint=hint) from error
        try:
            # Waits without a deadline: the kernel wakes those who wait in their order, and a holder that dies lets go.
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def living(self) -> list[Lease]:
        """The leases that there are, oldest first; those that ended are taken away. Needs the lock.

        :raises BadInput: a lease is damaged, so that what is free is not known.
        """
        found = []
        for path in self.directory.glob("*.lease"):
            lease = self._examine(path)
            if lease is not None:
                found.append(lease)
        return sorted(found, key=lambda lease: lease.granted)

    def _examine(self, path: Path) -> Lease | None:
        text, held = _look(path)
        try:
            lease = Lease.from_text(text) if text else None  # empty: its launcher died before it was granted anything
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            # Whose GPUs they are is not known: to take them for free would give them to two.
            hint = "see with gpuiso map who uses GPUs; when nobody has those of this lease, remove the file"
            raise BadInput(f"not a lease: {error}", file=str(path), hint=hint) from error
        if lease is not None and (held or (lease.cgroup is not None and self._liveness.populated(lease.cgroup))):
            return lease
        if lease is not None and lease.cgroup is not None:
            self._liveness.discard(self._hand_on(lease.cgroup, path))
        _unlink(path)
        return None

    def _hand_on(self, cgroup: CgroupId, own: Path) -> CgroupId:
        """What was made above a cgroup goes with the last lease that lives below it."""
        for path in self.directory.glob("*.lease") if cgroup.made else ():
            other = None if path == own else _read_lease(path)
            if other is None or other.cgroup is None or other.cgroup.mount != cgroup.mount:
                continue
            shared = {made for made in cgroup.made if other.cgroup.path.startswith(f"{made[0]}/")}
            if shared:
                theirs = replace(other.cgroup, made=tuple({*other.cgroup.made, *shared}))
                fd = os.open(path, _FLAGS)
                try:
                    _write(fd, path, replace(other, cgroup=theirs).as_text())
                finally:
                    os.close(fd)
                cgroup = replace(cgroup, made=tuple(set(cgroup.made) - shared))
        return cgroup

    def waiting(self) -> list[Ticket]:
        """Those who wait, in the order of arrival. Needs the lock."""
        found = []
        for path in self.directory.glob("*.ticket"):
            text, held = _look(path)
            if not held or text is None:
                _unlink(path)
                continue
            try:
                found.append(Ticket.from_text(text))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise BadInput(f"not a ticket: {error}", file=str(path), hint="remove the file") from error
        return sorted(found, key=lambda ticket: ticket.number)

    def listing(self) -> tuple[list[Lease], list[Ticket]]:
        """Leases and those who wait. Nothing is made where there never was a lease.

        :raises NotPermitted: the directory may not be looked into.
        """
        try:
            if not self.directory.is_dir():
                return [], []
        except PermissionError:
            pass  # said by what follows
        with self.locked():
            return self.living(), self.waiting()

    def take(
        self,
        request: Request,
        units: Sequence[Unit],
        who: Who,
        *,
        share: bool = False,
        wait: float = 0.0,
        busy: Callable[[Sequence[Lease]], Mapping[str, str]] = lambda _: {},
    ) -> Held:
        """Lease units, waiting up to ``wait`` seconds for them in the order of arrival.

        ``busy`` says, given the leases, which units are in use without one, and by whom; it is asked only when there
        would be enough otherwise.

        :raises NotFound: they cannot be had, or not in time; says why.
        :raises BadInput: a lease is damaged.
        :raises FailedAndUndone: it cannot be written down; nothing is leased.
        """
        with self.locked():
            ticket = self._ticket(request, who, share)
            place = self.directory / f"{ticket.number}.ticket"
            fd = _new(place, ticket.as_text())
        try:
            return self._queue(ticket, units, who, wait, busy)
        finally:
            _unlink(place)
            os.close(fd)

    def _ticket(self, request: Request, who: Who, share: bool) -> Ticket:
        path = self.directory / "sequence"
        fd = os.open(path, _FLAGS | os.O_CREAT, 0o600)
        try:
            text = os.read(fd, 64).strip()
            number = int(text) + 1 if text.isdigit() else 1
            _write(fd, path, f"{number:020}")  # of one length always, so that no moment of dying leaves another number
        finally:
            os.close(fd)
        return Ticket(number, os.getpid(), who.user, request.slots, share, who.most, time.time(), request.text)

    def _queue(
        self,
        ticket: Ticket,
        units: Sequence[Unit],
        who: Who,
        wait: float,
        busy: Callable[[Sequence[Lease]], Mapping[str, str]],
    ) -> Held:
        began = time.monotonic()
        limit = began + wait
        while True:
            with self.locked():
                leases = self.living()
                earlier = [other for other in self.waiting() if other.number < ticket.number]
                last = time.monotonic() >= limit
                choice = choose(units, ticket, leases, earlier, last=last)
                if choice.units is not None:
                    choice = choose(units, ticket, leases, earlier, busy(leases), last=last)
                if choice.units is not None:
                    return self._grant(ticket, choice.units, units, who)
            if last:
                waited = f" after {wait:g} s" if wait else ""
                hint = (
                    None if wait else "--wait-for-gpu SECONDS waits, in the order of arrival; gpuiso leases lists all"
                )
                raise NotFound(f"the GPUs asked for ({ticket.text}) cannot be had{waited}: {choice.why}", hint=hint)
            pause = _LOOK * (1 + len(earlier)) * (5 if time.monotonic() - began > _PATIENT else 1)
            time.sleep(min(pause, _LAST_LOOK, max(0.0, limit - time.monotonic())))

    def _grant(self, ticket: Ticket, chosen: Sequence[str], units: Sequence[Unit], who: Who) -> Held:
        gpus = {unit.id: unit.gpu for unit in units}
        lease = Lease(
            id=str(ticket.number),
            name=who.name,
            units=tuple((unit, gpus[unit]) for unit in chosen),
            share=ticket.share,
            user=who.user,
            user_name=who.user_name,
            command=who.command,
            pid=os.getpid(),
            taken=time.time(),
            granted=time.monotonic_ns(),
            gpu_max=who.gpu_max,
            gpu_memory=who.gpu_memory,
            cgroup=who.cgroup,
        )
        path = self.directory / f"{lease.id}.lease"
        return Held(self, lease, path, _new(path, lease.as_text()))


def _look(path: Path) -> tuple[str | None, bool]:
    """The content of a file, and whether somebody holds a lock on it."""
    try:
        fd = os.open(path, _FLAGS)
    except FileNotFoundError:
        return None, False
    except OSError as error:
        raise BadInput(f"is not a file of gpuiso: {error.strerror}", file=str(path)) from error
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise BadInput("is not a regular file", file=str(path))
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            held = False
        except BlockingIOError:
            held = True
        return os.pread(fd, 1 << 20, 0).decode("utf-8", "replace"), held
    finally:
        os.close(fd)


def _read_lease(path: Path) -> Lease | None:
    """A lease, None if there is none, or none that can be read."""
    try:
        return Lease.from_text(_look(path)[0] or "")
    except (BadInput, ValueError, KeyError, TypeError, AttributeError):
        return None


def _new(path: Path, text: str) -> int:
    """A new file with a text, and the lock on it. :raises FailedAndUndone: see _write; then there is no file."""
    fd = os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        _write(fd, path, text)
    except BaseException:
        _unlink(path)
        os.close(fd)
        raise
    return fd


def _write(fd: int, path: Path, text: str) -> None:
    """:raises FailedAndUndone: it cannot be written, as where /run is full; the file is as it was."""
    data = text.encode()
    before = os.pread(fd, os.fstat(fd).st_size, 0)
    try:
        if os.pwrite(fd, data, 0) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.ftruncate(fd, len(data))
    except OSError as error:
        os.pwrite(fd, before, 0)  # needs no room that it did not have
        os.ftruncate(fd, len(before))
        raise FailedAndUndone(f"{path} cannot be written: {error.strerror}; no GPU stays leased") from error


def _unlink(path: Path) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
