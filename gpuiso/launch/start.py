# SPDX-License-Identifier: Apache-2.0
"""The start: the calling process goes into its cgroup, proves that the rules hold, and becomes the program.

So the program's first instruction runs under its rules, and to the caller it is the process that was started: signals,
terminal, standard streams and exit status are its own, as with env(1) and systemd-run --scope. Without waiting, a
child does the same, and the caller learns whether it got as far as execve(2).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

from gpuiso.apply.calls import Calls
from gpuiso.apply.engine import Outcome, carry_out
from gpuiso.apply.plan import Plan
from gpuiso.apply.plan_cgroup import plan_cgroup
from gpuiso.apply.state import State
from gpuiso.apply.steps import MakeCgroup
from gpuiso.apply.target import Place
from gpuiso.errors import FailedAndUndone, GpuisoError, NotFound, NotPermitted
from gpuiso.gpu.model import DeviceNode
from gpuiso.grants.units import Unit
from gpuiso.host import process
from gpuiso.host.protocol import Host
from gpuiso.launch.account import Account, become
from gpuiso.launch.cgroups import Cgroups
from gpuiso.launch.home import Home
from gpuiso.launch.keeper import Keeper
from gpuiso.launch.lease import CgroupId
from gpuiso.launch.private_dev import PrivateDev
from gpuiso.launch.prove import prove
from gpuiso.launch.store import Held
from gpuiso.policy.resolve import ResolvedPolicy
from gpuiso.policy.systemd import to_systemd
from gpuiso.systemd.bus import connect
from gpuiso.systemd.limits import limit_properties

__all__ = ["CannotRun", "NoProgram", "Start", "become_program", "find_program", "start_program"]

_GOING = "going "
_TRIES = 5


class NoProgram(NotFound):
    """The program is not there; 127 is what shells and env(1) end with then."""

    exit_code = 127


class CannotRun(NotPermitted):
    """The program is there and cannot be run; 126 is what shells and env(1) end with then."""

    exit_code = 126


@dataclass(frozen=True)
class Start:
    """Everything that is decided before the start.

    ``units`` are the leased ones, ``others`` the rest; ``nodes`` all that the leased ones need.
    """

    host: Host
    calls: Calls
    cgroups: Cgroups
    home: Home
    policy: ResolvedPolicy
    units: tuple[Unit, ...]
    others: tuple[Unit, ...]
    command: tuple[str, ...]
    program: str
    environment: Mapping[str, str]
    account: Account
    held: Held
    nodes: Sequence[DeviceNode] = ()
    private_dev: bool = False
    keeper: Keeper | None = None


def find_program(name: str, path: str | None) -> str:
    """:raises NoProgram: there is none. :raises CannotRun: it cannot be executed."""
    found = shutil.which(name, path=path)
    if found is not None:
        return found
    if "/" in name and os.path.exists(name):
        raise CannotRun(f"{name}: it is a directory or not executable")
    raise NoProgram(f"{name}: there is no such program")


def become_program(start: Start, going: Callable[[], object] = lambda: None) -> NoReturn:
    """``going`` is called when only execve(2) is left to do.

    :raises GpuisoError: the program was not started. An empty cgroup goes when the lease is found to have ended.
    """
    private = PrivateDev(start.nodes) if start.private_dev else None
    try:
        cgroup = _enter_scope(start) if start.home.scope is not None else _enter_cgroup(start)
        start.held.bind(cgroup)
        prove(cgroup, start.units, start.others, start.nodes)
        if start.keeper is not None:
            start.keeper.hold(cgroup)
        if private is not None:
            private.move()
        if start.account.switch:
            become(start.account)
        _restore_signals()
        going()
    except OSError as error:
        what = start.home if error.filename is None else error.filename
        raise FailedAndUndone(f"the program was not started: {what}: {error.strerror or error}") from error
    try:
        os.execve(start.program, list(start.command), dict(start.environment))
    except OSError as error:
        raise CannotRun(f"{start.program}: {error.strerror}") from error


def _enter_cgroup(start: Start) -> CgroupId:
    """Without systemd, or where it delegates: make it, with its rules, then go in."""
    target = start.home.target
    if target is None or target.v2 is None:
        raise FailedAndUndone(f"{start.home} cannot be made")
    place = target.v2
    outcome = _carry_out(start, place)
    cgroup = start.cgroups.identify(place.mount, place.cgroup, ours=True)
    with start.calls.cgroup(place.mount, place.cgroup) as directory:
        start.calls.write(directory, "cgroup.procs", "0")
    above = [
        step.cgroup
        for step, before in outcome.applied.entries
        if isinstance(step, MakeCgroup) and not before["existed"] and step.cgroup != place.cgroup
    ]
    # They stay as they are while this process is below them.
    return replace(cgroup, made=tuple((path, os.stat(f"{place.mount}{path}").st_ino) for path in above))


def _carry_out(start: Start, place: Place) -> Outcome:
    """Once more if the cgroup above went with the launch that had made it, after it was looked for."""
    for tries_left in reversed(range(_TRIES)):
        try:
            return carry_out(_unverified(start), state=State(), calls=start.calls)
        except FailedAndUndone:
            if not tries_left or os.path.isdir(f"{place.mount}{start.home.above}"):
                raise
    raise AssertionError("unreachable: the last try returns or raises")


def _unverified(start: Start) -> Plan:
    """Its own verification asks about every rule; here only GPUs matter, and are asked about by ``_prove``."""
    if start.home.target is None:
        raise FailedAndUndone(f"{start.home} cannot be made")
    return replace(plan_cgroup(start.calls, start.home.target, start.policy), verification=None)


def _enter_scope(start: Start) -> CgroupId:
    """systemd makes the scope's cgroup, sets its rules, and only then moves us in."""
    devices = to_systemd(start.policy.rules, default_allow=start.policy.default_allow)
    scope = start.home.scope or ""
    properties = [
        ("Description", f"gpuiso run: {' '.join(start.command)[:200]}"),
        ("Slice", start.home.slice),
        ("CollectMode", "inactive-or-failed"),
        ("DevicePolicy", devices.policy),
        *([("DeviceAllow", [list(entry) for entry in devices.allow])] if devices.allow else []),
        *limit_properties(start.policy.files),
        ("PIDs", [os.getpid()]),
    ]
    start.calls.start_scope(scope, properties)
    where = process.unified_cgroup(start.host, os.getpid()) or "/"
    if where.rpartition("/")[2] != scope:
        raise FailedAndUndone(f"systemd started {scope}, but this process is in {where}")
    return start.cgroups.identify(start.home.mount, where, unit=scope)


def _restore_signals() -> None:
    """What Python ignores for its own sake."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)


def start_program(start: Start) -> int:
    """Start it and come back; returns its pid. It has a session of its own and nothing to read.

    :raises GpuisoError: it was not started.
    """
    readable, writable = os.pipe2(os.O_CLOEXEC)
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os.close(readable)
        _as_child(start, writable)
    os.close(writable)
    with open(readable) as file:
        answer = file.read()
    if answer != _GOING:
        _, status = os.waitpid(pid, 0)
        raise _told(answer.removeprefix(_GOING), os.waitstatus_to_exitcode(status))
    return pid


def _as_child(start: Start, writable: int) -> NoReturn:
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        connect.cache_clear()  # sd-bus refuses a connection that was made before a fork
        become_program(start, lambda: os.write(writable, _GOING.encode()))
    except GpuisoError as error:
        os.write(writable, json.dumps([error.code, error.exit_code, error.message, error.hint]).encode())
    except OSError as error:
        os.write(writable, json.dumps([GpuisoError.code, GpuisoError.exit_code, str(error), None]).encode())
    finally:
        os._exit(1)


def _told(answer: str, status: int) -> GpuisoError:
    """The error of a child, or what is known of one that died."""
    if not answer:
        return FailedAndUndone(f"the process that was to become the program ended with {status}")
    code, exit_code, message, hint = json.loads(answer)
    found = GpuisoError(message, hint=hint)
    found.code, found.exit_code = code, exit_code
    return found
