# SPDX-License-Identifier: Apache-2.0
"""The shapes of Docker's and systemd's objects, checked once where they enter.

Only members that gpuiso reads are named; null stands for a member that is not there. Who reads the objects after this
may rely on what stands here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuiso.host.record_json import Place

__all__ = ["check_container", "check_info", "check_unit"]

#: A type, a list of one shape, or an object with members of some shapes.
Shape = Any

_STRINGS = [str]
_REQUEST = {
    "Driver": str,
    "Count": int,
    "DeviceIDs": _STRINGS,
    "Capabilities": [_STRINGS],
    "Options": dict,
}
_CONTAINER = {
    "Id": str,
    "Name": str,
    "State": {"Running": bool, "Pid": int, "Error": str, "ExitCode": int, "Status": str, "StartedAt": str},
    "Config": {"Env": _STRINGS, "Image": str, "Labels": dict},
    "HostConfig": {
        "Runtime": str,
        "Privileged": bool,
        "Devices": [dict],
        "DeviceRequests": [_REQUEST],
        "DeviceCgroupRules": _STRINGS,
        "Binds": _STRINGS,
        "SecurityOpt": _STRINGS,
    },
    "Mounts": [{"Source": str, "Destination": str, "Type": str}],
}
_INFO = {
    "DefaultRuntime": str,
    "DockerRootDir": str,
    "CgroupDriver": str,
    "Runtimes": dict,
    "SecurityOptions": _STRINGS,
}
_UNIT = {
    "Id": str,
    "ActiveState": str,
    "LoadState": str,
    "Result": str,
    "ControlGroup": str,
    "Slice": str,
    "FragmentPath": str,
    "DropInPaths": _STRINGS,
    "Environment": _STRINGS,
    "DevicePolicy": str,
    "MainPID": int,
}
_NAMES = {str: "a string", int: "an integer", bool: "true or false", dict: "an object"}


def check_container(value: Any, place: Place) -> dict[str, Any]:
    """A container as Docker's ``inspect`` gives it. :raises BadInput: it cannot be one."""
    return _checked(value, _CONTAINER, place)


def check_info(value: Any, place: Place) -> dict[str, Any]:
    """Docker's ``info``. :raises BadInput: it cannot be one."""
    return _checked(value, _INFO, place)


def check_unit(value: Any, place: Place) -> dict[str, Any]:
    """A unit's D-Bus properties as JSON values. :raises BadInput: they cannot be one's."""
    unit = _checked(value, _UNIT, place)
    where = place.key("DeviceAllow")
    for index, entry in enumerate(where.sequence(unit.get("DeviceAllow") or [])):
        here = where.key(index)
        if len(here.sequence(entry)) != 2:
            here.fail("must be a list of a device and its accesses")
        for word in entry:
            here.string(word)
    return unit


def _checked(value: Any, shape: Mapping[str, Shape], place: Place) -> dict[str, Any]:
    found = place.mapping(value)
    _check(found, shape, place)
    return found


def _check(value: Any, shape: Shape, place: Place) -> None:
    if isinstance(shape, list):
        for index, item in enumerate(place.sequence(value)):
            _check(item, shape[0], place.key(index))
    elif isinstance(shape, Mapping):
        for name, part in shape.items():
            if place.mapping(value).get(name) is not None:
                _check(value[name], part, place.key(name))
    elif not isinstance(value, shape) or (shape is int and isinstance(value, bool)):
        place.fail(f"must be {_NAMES[shape]}")
