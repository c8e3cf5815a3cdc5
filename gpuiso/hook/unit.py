# SPDX-License-Identifier: Apache-2.0
"""The unit that the container runs in: its device settings, which systemd applies anew whenever it likes.

One method call over D-Bus, spoken here: a busctl would have to be started for each, and takes longer than all else
the hook does. The messages are those of the D-Bus specification, "Message Protocol"; the methods those of
org.freedesktop.systemd1(5).
"""

from __future__ import annotations

import os

from gpuiso.hook.dbus import Bus
from gpuiso.hook.errors import HookError
from gpuiso.hook.undo import Undo

__all__ = ["add_devices", "set_devices", "unit_of"]

_SYSTEMD = "/run/systemd/system"
_KINDS = {".scope": "Scope", ".service": "Service"}

Devices = tuple[str, list[tuple[str, str]]]
"""DevicePolicy, and the pairs of DeviceAllow."""


def unit_of(cgroup: str) -> str | None:
    """The unit of the system's systemd that owns a cgroup; None where there is none, or a user's own systemd."""
    if not os.path.isdir(_SYSTEMD):
        return None
    parts = cgroup.split("/")
    if any(part.startswith("user@") for part in parts):
        return None
    return next((part for part in reversed(parts) if part.endswith(tuple(_KINDS))), None)


def set_devices(unit: str, devices: Devices, undo: Undo) -> None:
    """Set DevicePolicy and DeviceAllow of a running unit, for as long as it runs.

    :raises HookError: systemd refuses, or does not answer.
    """
    kind = _KINDS[unit[unit.rindex(".") :]]
    try:
        bus = Bus()
        policy = bus.get_property(unit, kind, "DevicePolicy").text()
        old = (policy, bus.get_property(unit, kind, "DeviceAllow").pairs())
        _set(bus, unit, devices)
        bus.close()
    except OSError as error:
        raise HookError(f"systemd cannot be asked to set {unit}: {error.strerror or error}") from None
    undo.on_failure(lambda: _set(Bus(), unit, old))


def add_devices(unit: str, allow: list[tuple[str, str]], undo: Undo) -> None:
    """Add to DeviceAllow of a running unit, if the unit restricts devices at all.

    :raises HookError: systemd refuses, or does not answer.
    """
    kind = _KINDS[unit[unit.rindex(".") :]]
    try:
        bus = Bus()
        policy = bus.get_property(unit, kind, "DevicePolicy").text()
        old = bus.get_property(unit, kind, "DeviceAllow").pairs()
        new = [pair for pair in allow if pair not in old]
        if new and (policy != "auto" or old):
            bus.set_unit_properties(unit, [("DeviceAllow", new)])
            undo.on_failure(lambda: _set(Bus(), unit, (policy, old)))
        bus.close()
    except OSError as error:
        raise HookError(f"systemd cannot be asked to change {unit}: {error.strerror or error}") from None


def _set(bus: Bus, unit: str, devices: Devices) -> None:
    policy, allow = devices
    # An empty list forgets what was there; what follows is added.
    bus.set_unit_properties(unit, [("DevicePolicy", policy), ("DeviceAllow", []), ("DeviceAllow", allow)])
