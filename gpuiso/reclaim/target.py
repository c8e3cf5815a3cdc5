# SPDX-License-Identifier: Apache-2.0
"""A process that something is about to be done to, held so that it cannot be taken for another one.

A pid is given out again; a pidfd is not. The start time read while the pidfd is open and the process alive names the
process in files that outlive this one.
"""

from __future__ import annotations

import os
import select
import signal
from dataclasses import dataclass
from types import TracebackType

from gpuiso.errors import GpuisoError, NotFound, NotPermitted, NotSupported, Unknown
from gpuiso.host.process import command_name, start_time, status
from gpuiso.host.protocol import Host

__all__ = ["Target", "TargetEnded", "is_alive", "thread_group"]


class TargetEnded(GpuisoError):
    """The process ended while something was done to it."""

    code = "target-ended"
    exit_code = 4


def thread_group(host: Host, pid: int) -> int | None:
    """The process that a thread id belongs to (its own pid for a process), None if there is no such thread."""
    for line in (host.text(f"/proc/{pid}/status") or "").splitlines():
        name, _, value = line.partition(":")
        if name == "Tgid":
            return int(value)
    return None


def is_alive(host: Host, pid: int, start: int) -> bool:
    """Whether the process that started then still is there, as far as can be seen."""
    try:
        return start_time(host, pid) == start and status(host, pid).state not in "ZX"
    except NotFound:
        return False
    except Unknown:
        return True


@dataclass(frozen=True, slots=True)
class Target:
    """``start_time`` is in clock ticks after boot, ``pidfd`` stays open until :meth:`close`."""

    pid: int
    start_time: int
    comm: str
    pidfd: int

    @classmethod
    def open(cls, host: Host, pid: int, *, start: int | None = None) -> Target:
        """Takes hold of a process; with ``start``, only of the one that started then.

        :raises NotFound: there is none, or it is not that one.
        :raises NotSupported: the number is that of a thread. The driver takes a thread for its process and may
            kill it (NVIDIA/cuda-checkpoint issue 41).
        """
        leader = thread_group(host, pid)
        if leader is None:
            raise NotFound(f"no process {pid} on {host.name}")
        if leader != pid:
            raise NotSupported(f"{pid} is a thread of process {leader}", hint=f"--pid {leader} names the process")
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError as error:
            raise NotFound(f"no process {pid} on {host.name}") from error
        try:
            found = start_time(host, pid)
            if start is not None and start != found:
                raise NotFound(f"process {pid} is another one than the one that was meant: it started later")
            target = cls(pid, found, command_name(host, pid), pidfd)
            if not target.alive:  # the start time may be that of a successor
                raise NotFound(f"process {pid} ended")
        except BaseException:
            os.close(pidfd)
            raise
        return target

    @property
    def alive(self) -> bool:
        """Whether it has not ended; a zombie has."""
        return not self.wait(0.0)

    def require(self) -> None:
        """:raises TargetEnded: it ended."""
        if not self.alive:
            raise TargetEnded(f"{self} ended")

    def wait(self, seconds: float) -> bool:
        """Waits for its end; returns whether it came."""
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(1000 * seconds))

    def send(self, number: signal.Signals) -> bool:
        """Sends a signal; returns False if the process has ended. :raises NotPermitted: it is somebody else's."""
        try:
            signal.pidfd_send_signal(self.pidfd, number)
        except ProcessLookupError:
            return False
        except PermissionError as error:
            raise NotPermitted(f"not permitted to send {number.name} to process {self.pid}") from error
        return True

    def close(self) -> None:
        os.close(self.pidfd)

    def __str__(self) -> str:
        return f"process {self.pid} ({self.comm})"

    def __enter__(self) -> Target:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
