# SPDX-License-Identifier: Apache-2.0
"""What every engine's module says of its configuration, and small questions to the host that several ask."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from gpuiso.errors import Unknown
from gpuiso.host.protocol import Host
from gpuiso.runtimes.formats import Document, Path, Value
from gpuiso.runtimes.keys import KeyTable

__all__ = [
    "Edit",
    "Engine",
    "Place",
    "Problem",
    "Request",
    "Setting",
    "exists",
    "nvidia_runtime",
    "release",
    "spec_dirs",
]

Severity = Literal["error", "warning", "info"]
#: Where engines look for CDI specs, lowest precedence first (CDI, pkg/cdi/spec-dirs.go).
_SPEC_DIRS = ("/etc/cdi", "/var/run/cdi")
_RELEASE = re.compile(r"\bv?(\d+)\.(\d+)(?:\.(\d+))?")
_RUNTIME = "nvidia-container-runtime"
_RUNTIME_DIRECTORIES = ("/usr/bin", "/usr/local/bin", "/usr/local/nvidia/toolkit", "/run/current-system/sw/bin")


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked for. ``config_home`` is the caller's directory of configurations (XDG_CONFIG_HOME)."""

    host: Host
    file: str | None = None
    preset: str | None = None
    settings: tuple[str, ...] = ()
    config_home: str | None = None


@dataclass(frozen=True, slots=True)
class Setting:
    """A value that a preset asks for, by its key below the engine's own table."""

    path: Path
    value: Value


@dataclass(frozen=True, slots=True)
class Edit:
    """A change to another file that the first one needs to count."""

    file: str
    path: Path
    value: Value


@dataclass(frozen=True, slots=True)
class Place:
    """The file to edit, and where in it the engine's table is. ``initial`` is the text of a file that is new.

    ``backups`` is where old files are kept, beside the file if None.
    """

    file: str
    open: Callable[[str, str], Document]
    prefix: Path = ()
    initial: str = ""
    also: tuple[Edit, ...] = ()
    notes: tuple[str, ...] = ()
    backups: str | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """Something in a configuration that an engine refuses (error), or that does not do what one would think."""

    severity: Severity
    message: str
    file: str
    line: int | None = None

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{where}: {self.message}"


@dataclass(frozen=True, slots=True)
class Engine:
    """A configuration that gpuiso knows.

    ``presets`` give the settings of a preset for a host and a place; ``problems`` looks at a document as the
    engine would. ``services`` are the units that read the file when they start, the first that there is counts.
    """

    name: str
    title: str
    keys: KeyTable
    presets: Mapping[str, Callable[[Request, Place], Iterable[Setting]]]
    place: Callable[[Request], Place]
    problems: Callable[[Request, Place, Document], Iterable[Problem]]
    services: tuple[str, ...] = ()
    restart_says: str = ""
    unknown_is: Severity = "info"
    check: Callable[[str], tuple[str, ...]] | None = None
    user_service: str | None = None


def exists(host: Host, path: str) -> bool | None:
    """Whether something is at ``path``; None if the host cannot tell."""
    try:
        return host.stat(path) is not None
    except Unknown:
        return None


def release(host: Host, *argv: str) -> tuple[int, int] | None:
    """Major and minor of what a program says of its version, None if there is none or it cannot be known."""
    try:
        result = host.command(argv)
    except Unknown:
        return None
    match = None if result is None else _RELEASE.search(result.stdout)
    return None if match is None else (int(match[1]), int(match[2]))


def nvidia_runtime(host: Host, name: str = _RUNTIME) -> tuple[str, bool | None]:
    """The path of NVIDIA's runtime, and whether it is there (None if the host cannot tell)."""
    answers = {f"{directory}/{name}": exists(host, f"{directory}/{name}") for directory in _RUNTIME_DIRECTORIES}
    found = next((path for path, answer in answers.items() if answer), None)
    if found is not None:
        return found, True
    return f"/usr/bin/{name}", None if None in answers.values() else False


def spec_dirs() -> list[str]:
    return list(_SPEC_DIRS)
