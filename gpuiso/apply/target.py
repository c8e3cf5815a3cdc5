# SPDX-License-Identifier: Apache-2.0
"""What rules are applied to: a cgroup, in one hierarchy or two, and the systemd unit that owns it."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass

from gpuiso.apply.calls import Calls
from gpuiso.errors import BadInput, NotFound, NotSupported
from gpuiso.host.cgroup_mounts import cgroup_mount
from gpuiso.host.protocol import Host

__all__ = ["Place", "Target", "cgroup_path", "find_cgroup", "levels"]

_LONGEST = 255  # bytes, of a file's name (NAME_MAX)
_LONGEST_PATH = 3840  # bytes; a mount point before it and a control file behind it must fit into PATH_MAX, 4096
_SHOWN = 40


@dataclass(frozen=True)
class Place:
    """A cgroup of one hierarchy: where that is mounted, the path from there, and whether it exists yet."""

    mount: str
    cgroup: str
    exists: bool = True

    @property
    def directory(self) -> str:
        return f"{self.mount}{self.cgroup.rstrip('/')}"


@dataclass(frozen=True)
class Target:
    """``key`` names it for good. ``v2`` and ``v1`` (the devices hierarchy) are None where it has no place.

    ``unit`` is the systemd unit that owns the cgroup: then it is changed through the unit's properties.
    ``delegated`` is the unit in whose delegated part of the tree it is, with that unit's cgroup.
    """

    key: str
    v2: Place | None
    v1: Place | None = None
    unit: str | None = None
    delegated: tuple[str, str] | None = None

    @property
    def places(self) -> tuple[Place, ...]:
        """Where it is, v2 first."""
        return tuple(place for place in (self.v2, self.v1) if place is not None)

    @property
    def name(self) -> str:
        """What people call it."""
        return self.unit or self.places[0].cgroup

    def generation(self, calls: Calls) -> int | None:
        """What tells the cgroup from a later one of the same path: its inode number. None for a unit."""
        place = self.v2 or self.v1
        if self.unit is not None or place is None:
            return None
        with calls.cgroup(place.mount, place.cgroup) as directory:
            return os.fstat(directory).st_ino


def levels(cgroup: str) -> Iterator[str]:
    """A cgroup and all its ancestors, the root first."""
    yield "/"
    parts = [part for part in cgroup.split("/") if part]
    for end in range(1, len(parts) + 1):
        yield "/" + "/".join(parts[:end])


def cgroup_path(host: Host, text: str) -> str:
    """A cgroup as people write it, from the root of its tree: both ``/a/b`` and ``/sys/fs/cgroup/a/b`` will do.

    :raises BadInput: not absolute, the root itself, a path that leads upwards, or not UTF-8.
    """
    if any(0xDC80 <= ord(letter) <= 0xDCFF for letter in text):  # how Python shows such bytes
        raise BadInput(f"the cgroup {text!r} is not UTF-8")
    if not text.startswith("/"):
        raise BadInput(
            f"the cgroup {text!r} does not start with /", hint="it is a path from the root of the cgroup tree"
        )
    parts = [part for part in text.split("/") if part not in ("", ".")]
    for controller in ("", "devices"):
        mount = cgroup_mount(host, controller)
        above = [part for part in (mount or "").split("/") if part]
        if above and parts[: len(above)] == above:
            parts = parts[len(above) :]
            break
    if ".." in parts or "\0" in text:
        raise BadInput(f"the cgroup {text!r} cannot be named with ..")
    if not parts:
        raise BadInput(
            "the root of the cgroup tree cannot be limited: every process of the host is below it",
            hint="name a cgroup below it; --create makes one",
        )
    return "/" + "/".join(parts)


def _check_name(path: str) -> None:
    """:raises BadInput: the kernel does not take such a name, or does, and few programs could show the cgroup."""
    for part in path.split("/"):
        shown = part if len(part) <= _SHOWN else f"{part[:_SHOWN]}…"
        if any(ord(letter) < 0x20 or 0x7F <= ord(letter) < 0xA0 for letter in part):
            raise BadInput(f"the name {shown!r} of a cgroup to be made has a control character in it")
        if len(part.encode()) > _LONGEST:
            raise BadInput(f"the name {shown!r} of a cgroup to be made is longer than {_LONGEST} bytes")
    if len(path.encode()) > _LONGEST_PATH:
        raise BadInput(f"the path {path[:_SHOWN]!r}… of a cgroup to be made is longer than {_LONGEST_PATH} bytes")


def find_cgroup(host: Host, calls: Calls, text: str, *, create: bool = False) -> Target:
    """The cgroup of a path, in the hierarchies that have it.

    :raises BadInput: see cgroup_path; also a path that leads out of the tree, or that cannot be made.
    :raises NotFound: it does not exist, and ``create`` is not set.
    :raises NotSupported: there is no hierarchy that filters devices.
    """
    path = cgroup_path(host, text)
    mounts = {controller: cgroup_mount(host, controller) for controller in ("", "devices")}
    if not any(mounts.values()):
        raise NotSupported("neither a cgroup2 tree nor the devices controller of cgroup v1 is mounted here")
    found = {name: _place(calls, mount, path) for name, mount in mounts.items() if mount is not None}
    if not any(place.exists for place in found.values()):
        if not create:
            raise NotFound(f"no cgroup {path} on {host.name}")
        _check_name(path)
        home = found.get("") or found["devices"]
        return Target(f"cgroup {path}", home if "" in found else None, None if "" in found else home)
    v2, v1 = found.get(""), found.get("devices")
    return Target(f"cgroup {path}", v2 if v2 and v2.exists else None, v1 if v1 and v1.exists else None)


def _place(calls: Calls, mount: str, path: str) -> Place:
    try:
        with calls.cgroup(mount, path):
            return Place(mount, path)
    except NotADirectoryError:
        raise BadInput(f"{mount}{path} is a file, not a cgroup") from None
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENAMETOOLONG):
            return Place(mount, path, exists=False)
        raise BadInput(f"{mount}{path} leads out of the cgroup tree: {os.strerror(error.errno or 0)}") from error
