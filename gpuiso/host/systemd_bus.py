# SPDX-License-Identifier: Apache-2.0
"""What systemd says of its units, asked over D-Bus by busctl(1).

busctl comes with systemd, prints D-Bus values as JSON, and can be abandoned at a deadline if the manager does not
answer. One call asks for everything: the path of a unit's object follows from its name (sd_bus_path_encode(3)), and
asking for the object of a unit that is not loaded makes the manager look for it, as ``systemctl show`` does.
"""

from __future__ import annotations

import json
import re
from typing import Any

from gpuiso.errors import BadInput, Unknown
from gpuiso.host.child import Child
from gpuiso.host.protocol import CommandResult
from gpuiso.host.record_json import Place
from gpuiso.host.shapes import check_unit

__all__ = ["UNIT_NAME", "SystemdBus"]

DEADLINE = 3.0  # seconds; an answer takes 0.01

#: systemd.unit(5): what a unit's name may look like. Slices, sockets and the rest have properties as well.
UNIT_NAME = re.compile(
    r"(?=.{1,255}$)[A-Za-z0-9:_.\\-]+(?:@[A-Za-z0-9:_.\\@-]*)?"
    r"\.(?:service|scope|slice|socket|target|mount|automount|swap|timer|path|device)"
)

_MANAGER = "org.freedesktop.systemd1"
_GET_ALL = ("org.freedesktop.DBus.Properties", "GetAll", "s", "")
_ABSENT = re.compile(r"not loaded|not found|Unknown object|UnknownObject|NoSuchUnit")
_FORBIDDEN = re.compile(r"[Aa]ccess denied|[Pp]ermission denied|Interactive authentication")


class SystemdBus:
    """The system manager. Answers are remembered; a manager that did not answer once is not waited for again."""

    def __init__(self, *, deadline: float = DEADLINE) -> None:
        self._deadline = deadline
        self._units: dict[str, dict[str, Any] | None] = {}
        self._silent: str | None = None

    def unit(self, name: str) -> dict[str, Any] | None:
        """All properties of a unit as JSON values, None if there is no such unit.

        :raises Unknown: systemd does not answer, or does not let this caller ask.
        """
        if UNIT_NAME.fullmatch(name) is None:
            return None
        if name not in self._units:
            self._units[name] = self._properties(name)
        return self._units[name]

    def _properties(self, name: str) -> dict[str, Any] | None:
        what = f"unit {name}"
        if self._silent is not None:
            raise Unknown(what, self._silent)
        answer = self._call(_object_path(name))
        if answer is None or answer.timed_out:
            self._silent = (
                "there is no busctl to ask systemd with"
                if answer is None
                else f"systemd did not answer within {self._deadline:g} s"
            )
            raise Unknown(what, self._silent)
        if answer.exit == 0:
            properties = _properties(answer.stdout, what)
            return None if properties.get("LoadState") == "not-found" else properties
        says = (answer.stderr.strip() or f"busctl ended with {answer.exit}").splitlines()[-1]
        if _ABSENT.search(says):
            return None
        if _FORBIDDEN.search(says):
            raise Unknown(what, "not permitted to ask systemd: it takes root, or a user whom D-Bus lets ask")
        raise Unknown(what, f"systemd could not be asked: {says}")

    def _call(self, path: str) -> CommandResult | None:
        """Properties.GetAll of an object for all interfaces; None if there is no busctl."""
        argv = ("busctl", "--system", "--json=short", "--no-pager", "call", _MANAGER, path, *_GET_ALL)
        try:
            return Child(argv).result(self._deadline)
        except FileNotFoundError:
            return None


def _object_path(name: str) -> str:
    """sd_bus_path_encode(3): every byte but letters and digits as ``_`` and two hexadecimal digits."""
    encoded = "".join(c if c.isalpha() or (c.isdigit() and place) else f"_{ord(c):02x}" for place, c in enumerate(name))
    return f"/org/freedesktop/systemd1/unit/{encoded}"


def _properties(printed: str, what: str) -> dict[str, Any]:
    try:
        message = json.loads(printed)
        (members,) = message["data"]
        properties = {str(name): _plain(variant) for name, variant in members.items()}
        return check_unit(properties, Place(what))
    except (BadInput, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Unknown(what, f"busctl printed what this version cannot read: {error}") from error


def _plain(variant: Any) -> Any:
    """The value of a variant as busctl prints it: ``{"type": "a(ss)", "data": [...]}``; nested ones as well."""
    if isinstance(variant, dict) and variant.keys() == {"type", "data"}:
        return _plain(variant["data"])
    if isinstance(variant, dict):
        return {name: _plain(value) for name, value in variant.items()}
    if isinstance(variant, list):
        return [_plain(value) for value in variant]
    return variant
