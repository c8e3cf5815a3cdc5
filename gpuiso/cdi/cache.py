# SPDX-License-Identifier: Apache-2.0
"""The devices of a list of spec directories, merged as the reference's cache merges them (pkg/cdi/cache.go).

Later directories win. Two files of one directory that define the same device take it from each other, and
from every other directory too. A file that cannot be used is reported and skipped. Only ``.json`` and
``.yaml`` files directly in a directory count.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass

from gpuiso.cdi.names import qualified_name
from gpuiso.cdi.spec import Device, Spec
from gpuiso.cdi.validate import parse_spec
from gpuiso.errors import BadInput, Unknown
from gpuiso.host.protocol import Host

__all__ = [
    "DEFAULT_SPEC_DIRS",
    "EXTENSIONS",
    "Cache",
    "CachedDevice",
    "FileError",
    "SpecFile",
    "load",
    "spec_files",
]

DEFAULT_SPEC_DIRS = ("/etc/cdi", "/var/run/cdi")
EXTENSIONS = (".json", ".yaml")


@dataclass(frozen=True, slots=True)
class SpecFile:
    """A usable file. ``priority`` is the index of its directory; higher wins."""

    path: str
    priority: int
    spec: Spec


@dataclass(frozen=True, slots=True)
class CachedDevice:
    name: str
    device: Device
    file: SpecFile


@dataclass(frozen=True, slots=True)
class FileError:
    """Why a file, or some device in it, is not used. ``message`` begins with the file's path if the file is
    bad.
    """

    file: str
    message: str


@dataclass(frozen=True, slots=True)
class Cache:
    """``devices`` by qualified name, sorted; ``conflicts``: the files that define a device which none may
    then have; ``shadowed``: files whose definition of a device a later directory replaces.
    """

    directories: tuple[str, ...]
    files: tuple[SpecFile, ...]
    devices: dict[str, CachedDevice]
    errors: tuple[FileError, ...]
    conflicts: dict[str, tuple[str, ...]]
    shadowed: dict[str, tuple[str, ...]]


def spec_files(host: Host, directory: str) -> tuple[str, ...]:
    """The paths of the spec files in ``directory``, sorted; none if it does not exist.

    Raises Unknown if it may not be read.
    """
    return tuple(
        posixpath.join(directory, name)
        for name in host.listdir(directory) or ()
        if posixpath.splitext(name)[1] in EXTENSIONS or name in EXTENSIONS
    )


def load(host: Host, directories: tuple[str, ...] = DEFAULT_SPEC_DIRS) -> Cache:
    """Read ``directories``, least important first. Never fails: what cannot be used is in ``errors``."""
    files: list[SpecFile] = []
    errors: list[FileError] = []
    for priority, directory in enumerate(directories):
        try:
            paths = spec_files(host, directory)
        except Unknown as error:
            errors.append(FileError(directory, error.message))
            continue
        for path in paths:
            found = _read(host, path, priority)
            if isinstance(found, SpecFile):
                files.append(found)
            elif found is not None:
                errors.append(found)
    return _merge(directories, files, errors)


def _read(host: Host, path: str, priority: int) -> SpecFile | FileError | None:
    node = None
    try:
        node = host.stat(path)
        if node is not None and node.type == "d":
            return None
        data = host.read(path)
        if data is None:
            return FileError(path, f"{path}: cannot be read: it does not lead to a regular file")
        return SpecFile(path, priority, parse_spec(data, path))
    except (BadInput, Unknown) as error:
        return FileError(path, error.message)


def _merge(directories: tuple[str, ...], files: list[SpecFile], errors: list[FileError]) -> Cache:
    devices: dict[str, CachedDevice] = {}
    conflicts: dict[str, list[str]] = {}
    shadowed: dict[str, list[str]] = {}
    for file in files:
        for device in file.spec.devices:
            name = qualified_name(file.spec.kind, device.name)
            other = devices.get(name)
            if other is not None and other.file.priority == file.priority:
                message = f"conflicting device {name}: {other.file.path} and {file.path} both define it"
                errors += [FileError(path, message) for path in (other.file.path, file.path)]
                involved = conflicts.setdefault(name, [other.file.path])
                involved.append(file.path)
                continue
            if other is not None:
                shadowed.setdefault(name, []).append(other.file.path)
            devices[name] = CachedDevice(name, device, file)
    for name in conflicts:
        del devices[name]
    return Cache(
        directories=directories,
        files=tuple(files),
        devices=dict(sorted(devices.items())),
        errors=tuple(dict.fromkeys(errors)),
        conflicts={name: tuple(dict.fromkeys(paths)) for name, paths in sorted(conflicts.items())},
        shadowed={name: tuple(paths) for name, paths in sorted(shadowed.items())},
    )
