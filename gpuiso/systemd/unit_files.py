# SPDX-License-Identifier: Apache-2.0
"""The files that make up a unit, read as systemd reads them (systemd.unit(5))."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gpuiso.errors import BadInput, NotFound, Unknown
from gpuiso.host.protocol import Host

__all__ = ["Setting", "full_name", "section_of", "unit_settings"]

_DIRECTORIES = (
    *("/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system"),
    *("/usr/lib/systemd/system", "/lib/systemd/system"),
)
_SECTIONS = {"service": "Service", "slice": "Slice", "socket": "Socket", "mount": "Mount", "swap": "Swap"}
_NAME = re.compile(r"[A-Za-z0-9:_.@\\-]{1,255}")


@dataclass(frozen=True)
class Setting:
    """One assignment, where it stands: lines that end with a backslash are joined."""

    file: str
    line: int
    section: str
    name: str
    value: str


def full_name(unit: str) -> str:
    """A unit's name with its suffix: a name without one is a service's.

    :raises BadInput: not a name of a unit.
    """
    name = unit if "." in unit else f"{unit}.service"
    if not _NAME.fullmatch(name) or name.startswith("."):
        raise BadInput(f"{unit!r} is not the name of a unit")
    return name


def section_of(unit: str) -> str:
    """The section that has the device rules of a unit. :raises BadInput: units of its kind have no files for them."""
    kind = unit.rpartition(".")[2]
    if kind not in _SECTIONS:
        raise BadInput(f"{unit}: a {kind} has no unit file that rules could be put into")
    return _SECTIONS[kind]


def unit_settings(host: Host, unit: str) -> list[Setting]:
    """All assignments of a unit's file and its drop-ins, in the order in which they count.

    :raises NotFound: there is no such unit file.
    """
    names = [unit]
    if match := re.fullmatch(r"([^@]+@)[^.]*(\..+)", unit):
        names.append(match[1] + match[2])  # an instance of a template
    places = [f"{top}/{name}" for name in names for top in _DIRECTORIES]
    fragment = next((path for path in places if _text(host, path) is not None), None)
    drop_ins = {
        name: f"{top}/{unit_name}.d/{name}"
        for top in reversed(_DIRECTORIES)
        for unit_name in reversed(names)
        for name in _names(host, f"{top}/{unit_name}.d")
        if name.endswith(".conf")
    }
    if fragment is None and not drop_ins:
        raise NotFound(f"no unit file {unit} on {host.name}", hint="systemctl list-unit-files shows those there are")
    found: list[Setting] = []
    for path in ([] if fragment is None else [fragment]) + [drop_ins[name] for name in sorted(drop_ins)]:
        found += _settings(path, _text(host, path) or "")
    return found


def _text(host: Host, path: str) -> str | None:
    """None also where a record has nothing of it: it holds the files of units that matter."""
    try:
        return host.text(path)
    except Unknown:
        return None


def _names(host: Host, path: str) -> tuple[str, ...]:
    try:
        return host.listdir(path) or ()
    except Unknown:
        return ()


def _settings(path: str, text: str) -> Iterator[Setting]:
    section, joined, first = "", "", 0
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if line.startswith(("#", ";")):
            continue
        first = first or number
        joined += line
        if joined.endswith("\\"):
            joined = joined[:-1] + " "
            continue
        if joined.startswith("[") and joined.endswith("]"):
            section = joined[1:-1]
        elif "=" in joined:
            name, _, value = joined.partition("=")
            yield Setting(path, first, section, name.strip(), value.strip())
        joined, first = "", 0
