# SPDX-License-Identifier: Apache-2.0
"""The file system of a recorded host: root/, nodes.jsonl and absent.json as one tree.

A path is recorded, absent, or unknown. It is absent if absent.json says so, or if its directory is one that a record
holds whole; which those are is written in docs/host-record.md ("Absent or unknown"). Links are followed inside the
record only, and those below ``/proc/PID/root`` inside that root only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from gpuiso.errors import BadInput, Unknown
from gpuiso.host.archive import MAX_MEMBERS, Archive
from gpuiso.host.protocol import Node
from gpuiso.host.record_nodes import DEFAULT_MODES

__all__ = ["Tree", "whole_by_existing"]

_IN_ROOT = re.compile(r"(/proc/(\d+|self|thread-self)/root)(/.*)")
_IN_PROCESS = re.compile(r"/proc/(?:\d+|self|thread-self)(/.*)?")
_MAGIC = re.compile(r"(/proc/(?:\d+|self|thread-self))/(?:cwd|exe|fd/\d+|map_files/.+|ns/.+|root)")
#: Held whole as soon as anything in them is recorded.
_WHOLE = re.compile(
    r"/dev/.*"
    r"|/proc/driver/nvidia/(?:gpus|capabilities)(/.*)?|/proc/driver/nvidia-caps(/.*)?"
    r"|/sys/bus/pci/devices(/.*)?|/sys/class/[^/]+(/.*)?"
    r"|/etc/cdi|/run/cdi|/var/run/cdi"
)
#: udev's links by number: every host has them and few records name them.
_SELDOM_RECORDED = {"/dev/char", "/dev/block"}
_DOTS = re.compile(r"//|/\.{1,2}(?:/|$)|/$")
_MAX_LINKS = 40  # as path_resolution(7)


class Tree:
    """``nodes`` is None where the record has no nodes.jsonl."""

    def __init__(self, name: str, archive: Archive, nodes: Mapping[str, Node] | None, absent: frozenset[str]) -> None:
        self._name = name
        self._archive = archive
        self._nodes: Mapping[str, Node] = nodes if nodes is not None else {}
        self._has_nodes = nodes is not None
        self._absent = absent
        self._children = self._parents_of(self._nodes)
        self._mentions: dict[str, bool] = {}

    def _parents_of(self, nodes: Mapping[str, Node]) -> dict[str, set[str]]:
        """The names that nodes.jsonl gives each directory; its ancestors exist because it does."""
        children: dict[str, set[str]] = {}
        for path in nodes:
            while path != "/":
                parent, _, name = path.rpartition("/")
                path = parent or "/"
                names = children.setdefault(path, set())
                if name in names:
                    break
                names.add(name)
            if len(children) > MAX_MEMBERS:
                raise BadInput(f"more than {MAX_MEMBERS} directories", file=f"{self._name}/nodes.jsonl")
        return children

    # Questions

    def node(self, path: str, *, follow: bool) -> Node | None:
        """The entry at ``path``; with ``follow``, what it leads to. :raises Unknown: not recorded."""
        found = self._resolve(path, follow, 0)
        return None if found is None else replace(found, path=path)

    def read(self, path: str) -> bytes | None:
        """The bytes of a regular file. :raises Unknown: not recorded, or only its existence is."""
        node = self._resolve(path, True, 0)
        if node is None or node.type != "f":
            return None
        data = self._archive.read(f"root{node.path}")
        if data is None:
            raise Unknown(path, "it exists, but its content was not recorded")
        return data

    def listdir(self, path: str) -> tuple[str, ...] | None:
        """The recorded names in a directory: all that the host has only where the record holds it whole."""
        node = self._resolve(path, True, 0)
        if node is None or node.type != "d":
            return None
        names = self._children.get(node.path, set()).union(self._archive.listdir(_archived(node.path)))
        return tuple(sorted(names))

    def pids(self) -> tuple[int, ...]:
        """The processes of which anything is recorded."""
        names = self._children.get("/proc", set()).union(self._archive.listdir("root/proc"))
        return tuple(sorted(int(name) for name in names if name.isascii() and name.isdecimal() and len(name) < 11))

    # Resolution. Here the path of a Node is where the record holds it. ``links`` counts those followed so far.

    def _resolve(self, path: str, follow: bool, links: int) -> Node | None:
        if not path.startswith("/") or "\0" in path:
            return None
        below = _IN_ROOT.fullmatch(path)
        if below is None:
            return self._walk("", path, follow, links)
        base, process, rest = below.groups()
        try:
            if base not in self._children and self._archive.kind(f"root{base}") != "d":
                raise Unknown(path, f"the record has no view of process {process}")
            return self._walk(base, rest, follow, links)
        except Unknown:
            if not self._shares_host_mounts(process):
                raise
        return self._walk("", rest, follow, links)

    def _shares_host_mounts(self, process: str) -> bool:
        if process in ("1", "self", "thread-self"):
            return True
        root = self._nodes.get(f"/proc/{process}/root")
        if root is not None and root.target not in (None, "/"):
            return False  # chroot(2)
        own = self._mount_namespace(process)
        return own is not None and own in (self._mount_namespace("1"), self._mount_namespace("self"))

    def _mount_namespace(self, process: str) -> str | None:
        path = f"/proc/{process}/ns/mnt"
        node = self._nodes.get(path)
        if node is not None:
            return node.target
        data = self._archive.read(f"root{path}", limit=4096)
        return None if data is None else data.decode("utf-8", "replace").strip()

    def _walk(self, base: str, path: str, follow: bool, links: int) -> Node | None:
        """Follows ``path`` below ``base``; ``..`` and absolute links stay below it, as in a chroot."""
        if _DOTS.search(path) is None:
            entry = self._entry(base + path)
            if entry is not None and (entry.target is None or not follow):
                return entry  # recorded under this very path
            if entry is None and base + path in self._absent:
                return None
        pending = path.split("/")[::-1]
        at: list[str] = []
        while pending:
            name = pending.pop()
            if name in ("", "."):
                continue
            if name == "..":
                del at[-1:]
                continue
            at.append(name)
            here = f"{base}/{'/'.join(at)}"
            node = self._nodes.get(here)
            last = not any(part not in ("", ".") for part in pending)
            if node is None or node.target is None or (last and not follow):
                continue
            if last and self._archive.kind(f"root{here}") == "f":
                return self._file(here)  # the bytes that reading the link gave
            links += 1
            if links > _MAX_LINKS:
                return None
            if (magic := _MAGIC.fullmatch(here)) is not None:
                return self._follow_magic(node, magic[1], pending, follow, links)
            at = [] if node.target.startswith("/") else at[:-1]
            pending += node.target.split("/")[::-1]
        here = f"{base}/{'/'.join(at)}" if at else base or "/"
        entry = self._entry(here)
        if entry is None and not self._is_absent(here, base):
            raise Unknown(here, "not recorded")
        return entry

    def _follow_magic(self, link: Node, process: str, pending: list[str], follow: bool, links: int) -> Node | None:
        """/proc's own links lead to what their process sees under that name."""
        target = link.target or ""
        if not target.startswith("/") or target.endswith(" (deleted)"):
            raise Unknown(link.path, f"leads to {target}, which is no path")
        path = "/".join([f"{process}/root{target.rstrip('/')}", *pending[::-1]])
        return self._resolve(path, follow, links)

    def _entry(self, path: str) -> Node | None:
        node = self._nodes.get(path)
        if node is not None:
            return node
        kind = self._archive.kind(_archived(path))
        if kind == "f":
            return self._file(path)
        if kind == "d" or path in self._children or self._implied(path):
            return Node(path, "d", DEFAULT_MODES["d"])
        return None

    def _file(self, path: str) -> Node:
        return Node(path, "f", DEFAULT_MODES["f"], size=self._archive.size(f"root{path}"))

    def _implied(self, path: str) -> bool:
        if path == "/dev":
            return self._has_nodes
        return path == "/" or (path == "/proc/driver" and self._lists_drivers())

    def _lists_drivers(self) -> bool:
        return any(self._archive.kind(f"root/proc/{name}") == "f" for name in ("devices", "modules"))

    def _is_absent(self, path: str, base: str) -> bool:
        """Whether the record says that ``path``, of which it holds nothing, does not exist."""
        while path not in (base, "/"):
            if path in self._absent:
                return True
            parent = path.rpartition("/")[0] or "/"
            entry = self._entry(parent)
            if entry is not None:
                return entry.type != "d" or self._holds_whole(parent, path, base)
            path = parent
        return False

    def _holds_whole(self, directory: str, child: str, base: str) -> bool:
        view = directory.removeprefix(base) or "/"
        if child.removeprefix(base) in _SELDOM_RECORDED or view == "/":
            return False
        if not base and (process := _IN_PROCESS.fullmatch(view)) is not None:
            return process[1] == "/fd"
        if view == "/proc/driver":
            return not self._driver_mentioned(child.rpartition("/")[2])
        if view == "/dev":
            return self._has_nodes and (not base or directory in self._children or directory in self._nodes)
        if whole_by_existing(directory):
            return True
        stated = self._nodes.get(directory)
        return stated is not None and view != "/proc"

    def _driver_mentioned(self, name: str) -> bool:
        """Whether /proc/devices or /proc/modules knows of it: then its files exist and were not recorded."""
        if name not in self._mentions:
            texts = [self._archive.read(f"root/proc/{file}") or b"" for file in ("devices", "modules")]
            word = name.encode("utf-8", "surrogateescape").replace(b"-", b"_")
            self._mentions[name] = any(word in text.replace(b"-", b"_") for text in texts)
        return self._mentions[name]


def whole_by_existing(directory: str) -> bool:
    """Whether a record that has ``directory`` holds all that is in it. Of a process's own view that is /dev alone."""
    match = _IN_ROOT.fullmatch(directory)
    if match is None:
        return _WHOLE.fullmatch(directory) is not None
    return match[3].startswith("/dev/")


def _archived(path: str) -> str:
    return "root" if path == "/" else f"root{path}"
