# SPDX-License-Identifier: Apache-2.0
"""The service manager on the system bus, through pystemd.

pystemd is used for its binding of sd-bus alone: its unit objects parse the introspection of every unit with lxml, and
its table of signatures lacks DeviceAllow and PIDs. The interface is described in org.freedesktop.systemd1(5).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from gpuiso.errors import GpuisoError, NotFound, NotPermitted, NotSupported, TimedOut

__all__ = ["SIGNATURES", "Bus", "Property", "connect", "interface_of"]

_DESTINATION = b"org.freedesktop.systemd1"
_PATH = b"/org/freedesktop/systemd1"
_MANAGER = b"org.freedesktop.systemd1.Manager"
_PROPERTIES = b"org.freedesktop.DBus.Properties"
_JOB_DEADLINE = 30.0  # seconds, as runc waits for a scope

Property = tuple[str, Any]
"""Name and value. A list of them may name one property twice: an empty list resets it, a further one adds."""

SIGNATURES: dict[str, str] = {
    "AllowedCPUs": "ay",
    "CPUQuotaPerSecUSec": "t",
    "CPUWeight": "t",
    "CollectMode": "s",
    "DefaultDependencies": "b",
    "Delegate": "b",
    "Description": "s",
    "DeviceAllow": "a(ss)",
    "DevicePolicy": "s",
    "MemoryHigh": "t",
    "MemoryLow": "t",
    "MemoryMax": "t",
    "MemoryMin": "t",
    "MemorySwapMax": "t",
    "PIDs": "au",
    "Slice": "s",
    "TasksMax": "t",
}
"""D-Bus signatures of the unit properties that gpuiso sets."""

_KINDS = {"service": "Service", "scope": "Scope", "slice": "Slice", "socket": "Socket", "mount": "Mount"}


def interface_of(unit: str) -> str | None:
    """The interface that has a unit's cgroup properties, by its suffix; None for kinds that have no cgroup."""
    kind = _KINDS.get(unit.rpartition(".")[2])
    return None if kind is None else f"org.freedesktop.systemd1.{kind}"


@cache
def connect() -> Bus:
    """The system bus; opened once in a process.

    :raises NotSupported: no systemd here, or no pystemd.
    """
    if not os.path.isdir("/run/systemd/system"):
        raise NotSupported("systemd is not the service manager of this host")
    try:
        from pystemd import dbuslib
    except ImportError as error:
        raise NotSupported(
            f"pystemd is needed to talk to systemd: {error}",
            hint="pip install 'gpuiso[systemd]' (needs libsystemd-dev), or apt install python3-pystemd",
        ) from error
    bus = dbuslib.DBus()
    _translated("the system bus", bus.open)
    return Bus(bus, dbuslib.apply_signature)


class Bus:
    """Methods of org.freedesktop.systemd1.Manager. Units are named in full: ``docker-1234.scope``.

    Every method raises NotFound for a unit that is not loaded, NotPermitted where polkit or D-Bus refuse, TimedOut
    for a manager that does not answer, and GpuisoError with systemd's own words otherwise.
    """

    def __init__(self, bus: Any, apply_signature: Callable[[bytes, list[Any]], list[Any]]) -> None:
        self._bus = bus
        self._apply = apply_signature
        self._results: _JobResults | None = None

    def _call(self, what: str, path: bytes, interface: bytes, method: str, arguments: list[Any]) -> Any:
        def call() -> Any:
            return _text(self._bus.call_method(_DESTINATION, path, interface, method.encode(), arguments).body)

        return _translated(what, call)

    def _manager(self, what: str, method: str, signature: str = "", *values: Any) -> Any:
        return self._call(what, _PATH, _MANAGER, method, self._apply(signature.encode(), list(values)))

    def unit_by_cgroup(self, cgroup: str) -> str | None:
        """The unit whose cgroup is ``cgroup`` or the nearest one above it, None if there is none."""
        try:
            path = self._manager(f"unit of cgroup {cgroup}", "GetUnitByControlGroup", "s", cgroup)
        except NotFound:
            return None
        return str(self._get(path, "org.freedesktop.systemd1.Unit", "Id", "s"))

    def _get(self, path: str, interface: str, name: str, signature: str) -> Any:
        def get() -> Any:
            return _text(
                self._bus.get_property(
                    _DESTINATION, path.encode(), interface.encode(), name.encode(), signature.encode()
                )
            )

        return _translated(name, get)

    def unit_properties(self, unit: str) -> dict[str, Any]:
        """All properties of a unit: those every unit has, and those of its kind.

        :raises NotFound: no such unit.
        """
        path = self._manager(f"unit {unit}", "LoadUnit", "s", unit)
        found: dict[str, Any] = {}
        for interface in ("org.freedesktop.systemd1.Unit", interface_of(unit)):
            if interface is not None:
                arguments = self._apply(b"s", [interface])
                found |= self._call(f"unit {unit}", path.encode(), _PROPERTIES, "GetAll", arguments) or {}
        if found.get("LoadState") == "not-found":
            raise NotFound(f"no unit {unit} on this host", hint="systemctl list-units --all shows the units there are")
        return found

    def set_unit_properties(self, unit: str, properties: Sequence[Property], *, runtime: bool) -> None:
        """SetUnitProperties: for the running unit at once, and in a drop-in for later reloads.

        ``runtime`` puts the drop-in below /run, where the next boot does not find it.
        """
        arguments = self._apply(b"sb", [unit, runtime]) + self._property_array(properties)
        self._call(f"unit {unit}", _PATH, _MANAGER, "SetUnitProperties", arguments)

    def start_transient_unit(self, unit: str, properties: Sequence[Property]) -> None:
        """StartTransientUnit, and the end of its job.

        :raises GpuisoError: the job did not end with ``done``.
        """
        arguments = self._apply(b"ss", [unit, "fail"]) + self._property_array(properties)
        arguments += [(ord("a"), b"(sa(sv))"), (-1, None)]
        results = self._job_results()
        job = self._call(f"unit {unit}", _PATH, _MANAGER, "StartTransientUnit", arguments)
        result = results.wait_for(job)
        if result != "done":
            raise GpuisoError(f"systemd could not start {unit}: its job ended with {result}")

    def _job_results(self) -> _JobResults:
        """systemd's signals, subscribed to once: it refuses a connection's second subscription."""
        if self._results is None:
            results = _JobResults(self._bus)
            self._manager("systemd's signals", "Subscribe")
            self._results = results
        self._results.forget()
        return self._results

    def stop_unit(self, unit: str) -> None:
        """Stop a unit. :raises NotFound: it is not loaded."""
        self._manager(f"unit {unit}", "StopUnit", "ss", unit, "replace")

    def attach_processes(self, unit: str, pids: Sequence[int]) -> None:
        """AttachProcessesToUnit: move processes into the cgroup of a unit that delegates."""
        self._manager(f"unit {unit}", "AttachProcessesToUnit", "ssau", unit, "/", list(pids))

    def _property_array(self, properties: Sequence[Property]) -> list[Any]:
        """``a(sv)`` as pystemd takes it: an opening with type and content, an end, in between the values."""
        arguments: list[Any] = [(ord("a"), b"(sv)")]
        for name, value in properties:
            signature = SIGNATURES[name].encode()
            arguments += [(ord("r"), b"sv"), (ord("s"), name.encode()), (ord("v"), signature)]
            arguments += self._apply(signature, [value])
            arguments += [(-1, None), (-1, None)]
        return [*arguments, (-1, None)]


class _JobResults:
    """What became of jobs: the JobRemoved signals that arrived, by job. Lives as long as the connection."""

    def __init__(self, bus: Any) -> None:
        self._bus = bus
        results: dict[str, str] = {}

        def arrived(message: Any, error: Any = None, userdata: Any = None) -> None:
            message.process_reply(False)
            _, job, _, result = _text(message.body)
            results[job] = result

        self._results = results
        self._keep = arrived  # sd-bus holds no reference to it
        self._bus.match_signal(_DESTINATION, _PATH, _MANAGER, b"JobRemoved", arrived, None)

    def forget(self) -> None:
        """What is known of earlier jobs."""
        self._results.clear()

    def wait_for(self, job: str) -> str:
        import time

        limit = time.monotonic() + _JOB_DEADLINE
        while job not in self._results:
            left = limit - time.monotonic()
            if left <= 0:
                raise TimedOut(f"systemd did not finish {job} within {_JOB_DEADLINE:g} s")
            self._bus.wait(int(left * 1e6))
            self._bus.process()
        return self._results[job]


def _text(value: Any) -> Any:
    """The same with bytes decoded, deeply."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, dict):
        return {_text(key): _text(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_text(entry) for entry in value]
    return value


_NOT_FOUND = ("NoSuchUnit", "UnknownObject", "FileNotFound")
_REFUSED = ("AccessDenied", "InteractiveAuthorizationRequired", "AuthFailed")
_SILENT = ("Timeout", "TimedOut", "NoReply")


def _translated(what: str, call: Callable[[], Any]) -> Any:
    """The call's result, with the errors of the bus as errors of gpuiso."""
    from pystemd.dbusexc import DBusBaseError

    try:
        return call()
    except DBusBaseError as error:
        kind = type(error).__name__
        name = error.err_name.decode() if isinstance(error.err_name, bytes) else str(error.err_name)
        words = error.err_message.decode() if isinstance(error.err_message, bytes) else str(error.err_message)
        said = words or os.strerror(abs(error.errno))
        code = abs(error.errno)
        if code == errno.ENOENT or any(word in kind or word in name for word in _NOT_FOUND):
            raise NotFound(f"{what}: {said}") from error
        if code in (errno.EACCES, errno.EPERM) or any(word in kind for word in _REFUSED):
            hint = "changing units needs root, or polkit's org.freedesktop.systemd1.manage-units"
            raise NotPermitted(f"{what}: systemd refuses: {said}", hint=hint) from error
        if code == errno.ETIMEDOUT or any(word in kind for word in _SILENT):
            raise TimedOut(f"{what}: systemd does not answer") from error
        raise GpuisoError(f"{what}: systemd says: {said}") from error
