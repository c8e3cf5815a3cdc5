# SPDX-License-Identifier: Apache-2.0
"""Where a path leads in a process's view, and which directories and links lie on the way (path_resolution(7))."""

from __future__ import annotations

from dataclasses import dataclass

from gpuiso.errors import Unknown
from gpuiso.host.protocol import Host, Node

__all__ = ["Way", "way"]

_MAX_LINKS = 40  # as path_resolution(7)


@dataclass(frozen=True, slots=True)
class Way:
    """``path`` has no links left. ``searched`` are the directories in which names are looked up, each once, in order;
    ``followed`` the links with the directory each lies in. Paths are as the process sees them."""

    path: str
    searched: tuple[str, ...]
    followed: tuple[tuple[str, str], ...]


def way(host: Host, pid: int, path: str) -> Way:
    """Follows ``path`` from the process's root. What cannot be looked at on the way is taken for a directory.

    :raises Unknown: the path leads through /proc/self, which is another place for every process.
    """
    pending = path.split("/")[::-1]
    at: list[str] = []
    searched: dict[str, None] = {}
    followed: list[tuple[str, str]] = []
    while pending:
        name = pending.pop()
        if name in ("", "."):
            continue
        directory = "/" + "/".join(at)
        searched[directory] = None
        if name == "..":
            del at[-1:]
            continue
        if at == ["proc"] and name in ("self", "thread-self"):
            raise Unknown(path, f"it leads through /proc/{name}, which is another place for every process")
        here = f"{directory.rstrip('/')}/{name}"
        node = _entry(host, f"/proc/{pid}/root{here}")
        if node is None or node.target is None:
            at.append(name)
            continue
        followed.append((here, directory))
        if len(followed) > _MAX_LINKS:
            break
        at = [] if node.target.startswith("/") else at
        pending += node.target.split("/")[::-1]
    return Way("/" + "/".join(at), tuple(searched), tuple(followed))


def _entry(host: Host, path: str) -> Node | None:
    try:
        return host.lstat(path)
    except Unknown:
        return None
