# SPDX-License-Identifier: Apache-2.0
"""Where in the cgroup tree a container begins."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["bears", "own_cgroup"]


def bears(part: str, identity: str) -> bool:
    """Whether one name in a cgroup's path is that of a container: ``ID``, ``ID.scope`` or ``PREFIX-ID.scope``."""
    name = part.removesuffix(".scope")
    return name == identity or (name != part and name.endswith(f"-{identity}"))


def own_cgroup(cgroups: Iterable[str], identity: str, declared: str | None = None) -> str | None:
    """The topmost cgroup that is the container's own, from those its first process is in.

    It bears the container's id, or is the one that its state declares; None if the process is in neither, as it
    shares its cgroup with whoever started it then.
    """
    paths = tuple(cgroups)
    for path in paths:
        parts = path.split("/")
        for place, part in enumerate(parts):
            if bears(part, identity):
                return "/".join(parts[: place + 1])
    if declared is not None and declared != "/":
        top = declared.rstrip("/")
        if any(path == top or path.startswith(f"{top}/") for path in paths):
            return top
    return None
