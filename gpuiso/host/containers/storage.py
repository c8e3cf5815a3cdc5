# SPDX-License-Identifier: Apache-2.0
"""The containers that containers/storage keeps for podman and CRI-O, running or not.

Names and images stand in ``GRAPHROOT/DRIVER-containers/containers.json`` (containers/storage, ``Container`` in
containers.go). podman's bundle is ``GRAPHROOT/DRIVER-containers/ID/userdata``, CRI-O's the same below the run root,
where both leave a pidfile.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpuiso.host.containers.state_files import StateFiles, mapping, text_of
from gpuiso.host.decimals import decimal

__all__ = ["Storage", "Stored"]

GRAPH_ROOT = "/var/lib/containers/storage"
RUN_ROOT = "/run/containers/storage"
USER_GRAPH_ROOT = ".local/share/containers/storage"
_ID = re.compile(r"[0-9a-f]{8,64}")
_BUNDLE = re.compile(r"(?P<layer>/.+/[a-z]+-containers)/[^/]+/userdata")


@dataclass(frozen=True, slots=True)
class Stored:
    """An entry of containers.json. ``bundles`` are where config.json may lie, ``pid_file`` where the pid does."""

    id: str
    name: str | None
    image: str | None
    kubernetes: bool
    bundles: tuple[str, str]
    pid_file: str
    owner: int | None


@dataclass(frozen=True, slots=True)
class _Place:
    """A storage: ``layer`` is one of its DRIVER-containers, ``run`` the same below the run root."""

    layer: str
    run: str
    owner: int | None


class Storage:
    """The entries of root's and the logged-in users' storages, each file read once."""

    def __init__(self, files: StateFiles) -> None:
        self._files = files
        self._read: dict[str, Mapping[str, Stored]] = {}

    def of_bundle(self, bundle: str, identity: str, owner: int | None) -> Stored | None:
        """The entry of the container with that bundle, which may lie in a storage of its own."""
        match = _BUNDLE.fullmatch(bundle)
        return None if match is None else self._entries(_Place(match["layer"], match["layer"], owner)).get(identity)

    def all(self) -> Iterator[Stored]:
        """Every entry."""
        for graph_root, run_root, owner in self._roots():
            for name in self._files.names(graph_root):
                if name.endswith("-containers"):
                    yield from self._entries(_Place(f"{graph_root}/{name}", f"{run_root}/{name}", owner)).values()

    def _roots(self) -> Iterator[tuple[str, str, int | None]]:
        yield GRAPH_ROOT, RUN_ROOT, None
        users = {uid: directory for uid, directory in self._files.user_directories() if uid}
        for line in (self._files.text("/etc/passwd") or "").splitlines() if users else ():
            fields = line.split(":")
            uid = (decimal(fields[2]) or 0) if len(fields) == 7 else 0
            if uid in users and fields[5].startswith("/"):
                yield f"{fields[5].rstrip('/')}/{USER_GRAPH_ROOT}", f"{users[uid]}/containers", uid

    def _entries(self, place: _Place) -> Mapping[str, Stored]:
        if place.layer not in self._read:
            found = {}
            for file in ("containers.json", "volatile-containers.json"):
                listed = self._files.json(f"{place.layer}/{file}")
                for each in listed if isinstance(listed, list) else ():
                    entry = _stored(each, place)
                    if entry is not None:
                        found[entry.id] = entry
            self._read[place.layer] = found
        return self._read[place.layer]


def _stored(entry: Any, place: _Place) -> Stored | None:
    identity = text_of(mapping(entry).get("id"))
    if identity is None or _ID.fullmatch(identity) is None:
        return None
    names = entry.get("names")
    try:
        metadata = mapping(json.loads(entry.get("metadata") or "{}"))
    except (ValueError, TypeError, RecursionError):
        metadata = {}
    return Stored(
        identity,
        text_of(names[0]) if isinstance(names, list) and names else None,
        text_of(metadata.get("image-name")),
        kubernetes=text_of(metadata.get("pod-name")) is not None,
        bundles=(f"{place.layer}/{identity}/userdata", f"{place.run}/{identity}/userdata"),
        pid_file=f"{place.run}/{identity}/userdata/pidfile",
        owner=place.owner,
    )
