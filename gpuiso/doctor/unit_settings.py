# SPDX-License-Identifier: Apache-2.0
"""What a systemd unit says about devices, from D-Bus or else from its files (systemd.resource-control(5)).

Of services the manager's own answer counts for more: their files may have changed since it read them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from gpuiso.errors import Unknown
from gpuiso.gpu.majors import registered
from gpuiso.host.decimals import decimal
from gpuiso.host.protocol import Host, Node

__all__ = ["Entry", "UnitSettings", "covers", "group_is_known", "unit_settings"]

#: Where units of the system manager lie, the first place first (systemd.unit(5)).
DIRECTORIES = (
    "/etc/systemd/system.control",
    "/run/systemd/system.control",
    "/run/systemd/transient",
    "/etc/systemd/system",
    "/run/systemd/system",
    "/run/systemd/generator",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
)
_YES = frozenset({"1", "yes", "true", "on", "y", "t"})
_SETTING = re.compile(r"^[ \t]*(PrivateDevices|DevicePolicy|DeviceAllow)[ \t]*=[ \t]*(.*?)[ \t]*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Entry:
    """One DeviceAllow=: what it names (a node, ``char-NAME``, ``block-NAME``) and the accesses of ``rwm``."""

    spec: str
    access: str

    def __str__(self) -> str:
        return f"{self.spec} {self.access}"


@dataclass(frozen=True, slots=True)
class UnitSettings:
    """``source`` is where they were read: a command that shows them, or files."""

    name: str
    private_devices: bool
    policy: str
    allow: tuple[Entry, ...]
    source: str

    @property
    def restricts(self) -> bool:
        """Whether systemd filters the unit's devices."""
        return self.private_devices or self.policy in ("closed", "strict") or bool(self.allow)

    @property
    def words(self) -> str:
        """The settings as systemctl shows them."""
        allow = ", ".join(map(str, self.allow)) or "(empty)"
        yes = "yes" if self.private_devices else "no"
        return f"PrivateDevices={yes} DevicePolicy={self.policy} DeviceAllow={allow}"


def unit_settings(host: Host, name: str) -> UnitSettings | None:
    """The settings of a unit of the system manager, None if there is no such unit.

    A scope is made by the manager, which keeps its settings in files: those are read first, as that takes no child
    process, and hosts have thousands of scopes.

    :raises Unknown: neither systemd nor its files tell.
    """
    if name.endswith(".scope"):
        try:
            return _from_files(host, name)
        except Unknown:
            pass  # the manager may tell
    try:
        properties = host.unit(name)
    except Unknown:
        return _from_files(host, name)
    return None if properties is None else _from_properties(name, properties)


def _from_properties(name: str, properties: dict[str, Any]) -> UnitSettings:
    if "DevicePolicy" not in properties:
        raise Unknown(f"unit {name}", "its properties do not tell of devices")
    return UnitSettings(
        name,
        properties.get("PrivateDevices") in (True, "yes"),
        str(properties["DevicePolicy"]),
        tuple(Entry(str(entry[0]), str(entry[1])) for entry in properties.get("DeviceAllow") or ()),
        f"systemctl show -p PrivateDevices,DevicePolicy,DeviceAllow {name}",
    )


def _from_files(host: Host, name: str) -> UnitSettings:
    """The unit's file and its drop-ins, read as systemd reads them."""
    names = [name]
    stem, at, rest = name.partition("@")
    if at:
        names.append(f"{stem}@.{rest.rpartition('.')[2]}")
    places = (f"{directory}/{each}" for each in names for directory in DIRECTORIES)
    fragment = next(_existing(host, places), None)
    if fragment is None:
        raise Unknown(f"unit {name}", "systemd was not asked, and no file of the unit was found")
    private, policy, allow, read = False, "auto", [], []
    for path, text in (fragment, *_drop_ins(host, names)):
        settings = _SETTING.findall(text)
        if settings:
            read.append(path)
        for key, value in settings:
            if key == "PrivateDevices":
                private = value.lower() in _YES
            elif key == "DevicePolicy":
                policy = value or "auto"
            elif value:
                spec, _, access = value.partition(" ")
                allow.append(Entry(spec, access.strip() or "rwm"))
            else:
                allow.clear()
    if private and policy == "auto":
        policy = "closed"
    return UnitSettings(name, private, policy, tuple(allow), ", ".join(read) or fragment[0])


def _existing(host: Host, paths: Iterator[str]) -> Iterator[tuple[str, str]]:
    for path in paths:
        try:
            text = host.text(path)
        except Unknown:
            continue  # another directory may have it
        if text is not None:
            yield path, text


def _drop_ins(host: Host, names: list[str]) -> list[tuple[str, str]]:
    """By file name, whatever directory they lie in; of equal names the first directory counts."""
    found: dict[str, str] = {}
    for directory in (f"{directory}/{name}.d" for directory in DIRECTORIES for name in names):
        try:
            listed = host.listdir(directory) or ()
        except Unknown:
            continue
        for file in listed:
            if file.endswith(".conf"):
                found.setdefault(file, f"{directory}/{file}")
    return list(_existing(host, (found[file] for file in sorted(found))))


def covers(host: Host, entry: Entry, path: str, node: Node) -> bool:
    """Whether an entry lets a unit open a node for reading and writing, as systemd resolves it now.

    :raises Unknown: /proc/devices, or the node that the entry names, cannot be read.
    """
    if not {"r", "w"} <= set(entry.access):
        return False
    numbers = re.fullmatch(r"/dev/(char|block)/(\d{1,9}):(\d{1,9})", entry.spec)
    if numbers is not None:
        found = (numbers[1][0], int(numbers[2]), int(numbers[3]))
        return found == (node.type, node.major, node.minor)
    if entry.spec == path:
        return True
    if entry.spec.startswith("/"):
        named = host.stat(entry.spec)
        return named is not None and (named.type, named.major, named.minor) == (node.type, node.major, node.minor)
    kind, _, pattern = entry.spec.partition("-")
    if kind[:1] != node.type or kind not in ("char", "block"):
        return False
    if pattern == "*":
        return True
    if pattern.isdigit():
        return decimal(pattern) == node.major
    return any(fnmatchcase(name, pattern) for name in registered(host, node.type).get(node.major or 0, ()))


def group_is_known(host: Host, entry: Entry) -> bool:
    """Whether a ``char-NAME`` names a driver that is registered; systemd drops it at unit start if it does not.

    :raises Unknown: /proc/devices cannot be read.
    """
    kind, _, pattern = entry.spec.partition("-")
    if kind not in ("char", "block") or pattern == "*" or pattern.isdigit():
        return True
    names = {name for each in registered(host, kind[0]).values() for name in each}
    names |= {"pts"} if kind == "char" else set()
    return any(fnmatchcase(name, pattern) for name in names)
