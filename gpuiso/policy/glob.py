# SPDX-License-Identifier: Apache-2.0
"""Wildcards as fnmatch(3) has them: ``*``, ``?``, ``[a-z]``, ``[!a]`` and ``[^a]``; a backslash is itself."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterator

from gpuiso.host.protocol import Host, Node

__all__ = ["device_nodes", "is_glob", "matcher"]

_WILD = re.compile(r"[*?\[]")


def is_glob(text: str) -> bool:
    return _WILD.search(text) is not None


def matcher(pattern: str) -> Callable[[str], bool]:
    """Whether a whole name matches ``pattern``."""
    compiled = re.compile(fnmatch.translate(pattern.replace("[^", "[!")))
    return lambda name: compiled.match(name) is not None


def device_nodes(host: Host, pattern: str) -> Iterator[tuple[str, Node]]:
    """The device nodes whose path matches an absolute ``pattern``, sorted; no wildcard stands for a slash.

    :raises Unknown: a directory or entry of the host is not known.
    """
    yield from _below(host, "", pattern.strip("/").split("/"))


def _below(host: Host, directory: str, parts: list[str]) -> Iterator[tuple[str, Node]]:
    part, *rest = parts
    names: tuple[str, ...] = (part,)
    if is_glob(part):
        match = matcher(part)
        names = tuple(name for name in host.listdir(directory or "/") or () if match(name))
    for name in names:
        path = f"{directory}/{name}"
        if rest:
            yield from _below(host, path, rest)
            continue
        node = host.stat(path)
        if node is not None and node.type in ("b", "c"):
            yield path, node
