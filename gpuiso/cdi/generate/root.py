# SPDX-License-Identifier: Apache-2.0
"""Looking for files below a root of a host, such as a driver container's. Links do not lead out of it."""

from __future__ import annotations

import fnmatch
import posixpath
import re

from gpuiso.errors import Unknown
from gpuiso.host.protocol import Host, Node

__all__ = ["Root"]

_MAX_LINKS = 40  # as path_resolution(7)
_SURROGATE = re.compile("[\ud800-\udfff]")


class Root:
    """Paths given and returned are those seen below ``prefix``; :meth:`host_path` adds it.

    What the host cannot tell counts as not there and is remembered in ``unknown``.
    """

    def __init__(self, host: Host, prefix: str = "/") -> None:
        self._host = host
        self.prefix = posixpath.normpath(prefix).rstrip("/")
        self.unknown: set[str] = set()
        self._names: dict[str, tuple[str, ...]] = {}
        self._nodes: dict[str, Node | None] = {}

    def host_path(self, path: str) -> str:
        return f"{self.prefix}{path}"

    def read(self, path: str) -> bytes | None:
        where = self.resolve(path)
        try:
            return None if where is None else self._host.read(self.host_path(where))
        except Unknown:
            self.unknown.add(path)
            return None

    def lstat(self, path: str) -> Node | None:
        """The entry at ``path``, whose directory must hold no links that leave the root."""
        if path not in self._nodes:
            try:
                self._nodes[path] = self._host.lstat(self.host_path(path))
            except Unknown:
                self.unknown.add(path)
                self._nodes[path] = None
        return self._nodes[path]

    def stat(self, path: str) -> Node | None:
        """What ``path`` leads to, inside the root."""
        where = self.resolve(path)
        return None if where is None else self.lstat(where)

    def names(self, directory: str) -> tuple[str, ...]:
        """The names in a directory, none if it does not exist."""
        if directory not in self._names:
            where = self.resolve(directory)
            try:
                listed = None if where is None else self._host.listdir(self.host_path(where))
            except Unknown:
                self.unknown.add(directory)
                listed = None
            # What is no UTF-8 cannot be written into a spec.
            self._names[directory] = tuple(name for name in listed or () if not _SURROGATE.search(name))
        return self._names[directory]

    def glob(self, directory: str, *patterns: str) -> tuple[str, ...]:
        """The paths in ``directory`` whose names match one of ``patterns``, sorted."""
        return tuple(
            posixpath.join(directory, name)
            for name in self.names(directory)
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
        )

    def resolve(self, path: str) -> str | None:
        """``path`` without links, None if it does not exist or goes in circles. A root of "/" trusts the
        host.
        """
        pending = [part for part in path.split("/") if part][::-1]
        at = ""
        links = 0
        while pending:
            part = pending.pop()
            if part == ".":
                continue
            if part == "..":
                at = posixpath.dirname(at) if at else ""
                at = "" if at == "/" else at
                continue
            here = f"{at}/{part}"
            node = self.lstat(here)
            if node is None:
                return None
            if node.target is None:
                at = here
                continue
            links += 1
            if links > _MAX_LINKS:
                return None
            if node.target.startswith("/"):
                at = ""
            pending += [part for part in node.target.split("/") if part][::-1]
        return at or "/"
