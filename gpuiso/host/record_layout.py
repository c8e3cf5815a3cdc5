# SPDX-License-Identifier: Apache-2.0
"""From remembered answers to the files of a record."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from gpuiso.errors import Unknown
from gpuiso.host.protocol import Host, Node
from gpuiso.host.record_contents import DEVICE_NAME, sees_host
from gpuiso.host.record_files import MAX_RECORDED, kept_bytes, redacted_bytes
from gpuiso.host.record_tools import cgroups_json, kernel_log, learn_from_tools, tool_files
from gpuiso.host.record_tree import whole_by_existing
from gpuiso.host.recorder import Recorder
from gpuiso.host.redact import Redactor

__all__ = ["Layout", "lay_out"]

_PROCESS = re.compile(r"/proc/(\d+)(?:/.*)?")
_ROOT = re.compile(r"/proc/\d+/root")
_IN_ROOT = re.compile(r"/proc/(\d+)/root(/.*)")
#: Directories of which a record never holds all entries.
_UNLISTED = re.compile(r"/proc|/proc/(?:\d+|self)(?:/(?!root/|fd$|task$).*)?")
_FD = re.compile(r"/proc/\d+/fd")
_DEV = re.compile(r"(?:/proc/\d+/root)?/dev")
#: Links to directories in sysfs that a record holds as the directories they lead to.
_SYSFS_LINK = re.compile(r"/sys/bus/pci/devices/[^/]+|/sys/class/[^/]+/[^/]+(?:/drm/[^/]+)?")
_GPU_TARGETS = ("/dev/nvidia", "/dev/dri/", "/dev/kfd", "/dev/dxg")
_NFS = re.compile(r" - (?:nfs4?|cifs|smb3|ceph|lustre|glusterfs) (?://)?([\w.-]+)[:/@]")


@dataclass(slots=True)
class Layout:
    """The files of a record by path, its otherwise empty directories, and what had to be left out."""

    files: dict[str, bytes] = field(default_factory=dict)
    directories: set[str] = field(default_factory=set)
    left_out: list[str] = field(default_factory=list)
    nodes: int = 0


def lay_out(recorder: Recorder, pids: Collection[int], redactor: Redactor | None) -> Layout:
    """The record of what ``recorder`` has heard, of processes only those in ``pids``."""
    if redactor is not None:
        _learn(recorder, pids, redactor)
    text = _same if redactor is None else redactor.text
    layout = Layout()
    facts = _facts(recorder, frozenset(pids))
    _put_files(layout, facts, redactor, text)
    nodes = _nodes(layout, facts, recorder.host, text)
    layout.nodes = len(nodes)
    lines = [json.dumps(_line(nodes[path], text)) for path in sorted(nodes)]
    layout.files["nodes.jsonl"] = "".join(f"{line}\n" for line in lines).encode()
    _put_json(layout, "absent.json", sorted(text(path) for path in facts.absent if path not in nodes))
    _put_json(layout, "cgroups.json", cgroups_json(recorder, text))
    if recorder.probes:
        probes = {str(pid): probed for pid, probed in sorted(recorder.probes.items())}
        _put_json(
            layout, "probes.json", {pid: {text(n): f for n, f in probed.items()} for pid, probed in probes.items()}
        )
    for name, value in tool_files(recorder, redactor).items():
        _put_json(layout, f"tools/{name}", value)
    if "kernel_log" in recorder.tools:
        layout.files["tools/dmesg.txt"] = kernel_log(recorder.tools["kernel_log"], redactor).encode(
            "utf-8", "surrogateescape"
        )
    return layout


@dataclass(slots=True)
class _Facts:
    """A recorder's answers about files that a record holds."""

    files: dict[str, bytes]
    nodes: dict[str, Node]
    listings: dict[str, tuple[str, ...]]
    absent: set[str]


def _facts(recorder: Recorder, pids: frozenset[int]) -> _Facts:
    """What was heard of the machine and of ``pids``, and which other processes do not exist.

    What a process sees of the host is recorded of the host: a record with some of it under /proc/PID/root would say
    that the rest is absent there.
    """
    hosts_view = {
        pid for pid in {_pid(path) for path in recorder.nodes} if pid is not None and sees_host(recorder, pid)
    }
    running = _running(recorder)

    def place(path: str) -> str:
        match = _IN_ROOT.fullmatch(path)
        return match[2] if match is not None and int(match[1]) in hosts_view else path

    def wanted(path: str) -> bool:
        return _pid(path) is None or _pid(path) in pids

    def gone(path: str) -> bool:
        return running is not None and _pid(path) not in running

    nodes = {place(path): node for path, node in recorder.nodes.items()}
    return _Facts(
        files={place(path): data for path, data in recorder.files.items() if wanted(place(path))},
        nodes={path: replace(node, path=path) for path, node in nodes.items() if wanted(path)},
        listings={place(path): names for path, names in recorder.listings.items() if wanted(place(path))},
        absent={path for path in map(place, recorder.absent) if wanted(path) or gone(path)},
    )


def _pid(path: str) -> int | None:
    match = _PROCESS.fullmatch(path)
    return None if match is None else int(match[1])


def _running(recorder: Recorder) -> frozenset[int] | None:
    try:
        return frozenset(recorder.pids())
    except Unknown:
        return None


def _learn(recorder: Recorder, pids: Collection[int], redactor: Redactor) -> None:
    """All names before anything is replaced: what one file gives away must not stand in another."""
    host = recorder.host
    for path in ("/proc/sys/kernel/hostname", "/etc/hostname"):
        redactor.learn_host(_text(host.text, path))
    for line in _text(host.text, "/etc/passwd").splitlines():
        name, _, rest = line.partition(":")
        number = rest.split(":")[1:2]
        if number and number[0].isdigit() and 1000 <= int(number[0]) < 60000:
            redactor.learn_user(name)
    learn_from_tools(recorder, redactor)
    for path, data in recorder.files.items():
        text = data.decode("utf-8", "surrogateescape")
        redactor.learn_homes(f"{path}\n{text}")
        if path.endswith("/environ"):
            redactor.learn_environment(entry.partition("=")[::2] for entry in text.split("\0"))
        elif path.endswith("/mountinfo"):
            for server in _NFS.findall(text):
                redactor.learn_host(server)
    for node in recorder.nodes.values():
        redactor.learn_homes(f"{node.path}\n{node.target or ''}")


def _text(question: Callable[[str], str | None], path: str) -> str:
    try:
        return question(path) or ""
    except Unknown:
        return ""


def _put_files(layout: Layout, facts: _Facts, redactor: Redactor | None, text: Callable[[str], str]) -> None:
    for path in sorted(facts.files):
        data: bytes | None = kept_bytes(path, facts.files[path])
        if data is not None and len(data) > MAX_RECORDED:
            layout.left_out.append(f"{text(path)}: larger than {MAX_RECORDED >> 20} MiB")
            continue
        if redactor is not None and data is not None:
            data = redacted_bytes(path, data, redactor)
        if data is None:
            layout.left_out.append(f"{text(path)}: it holds names, and cannot be changed without breaking it")
            continue
        layout.files[f"root{text(path)}"] = data


def _nodes(layout: Layout, facts: _Facts, host: Host, text: Callable[[str], str]) -> dict[str, Node]:
    """The entries of nodes.jsonl; directories that are not held whole become directories of the record."""
    nodes: dict[str, Node] = {}
    for path, node in facts.nodes.items():
        _put_node(layout, nodes, path, node, text)
    known = _with_parents({*nodes, *facts.files})
    for directory, names in (facts.listings | _implied_listings(facts, host)).items():
        if _UNLISTED.fullmatch(directory):
            continue
        for name in () if _FD.fullmatch(directory) else names:
            child = f"{directory.rstrip('/')}/{name}"
            if child in known or (_DEV.fullmatch(directory) and DEVICE_NAME.fullmatch(name) is None):
                continue
            if (entry := _asked(host.lstat, child)) is not None:
                _put_node(layout, nodes, child, entry, text)
        entry = _asked(host.lstat, directory)
        if entry is not None and entry.type == "d":
            nodes[directory] = entry
    return nodes


def _implied_listings(facts: _Facts, host: Host) -> dict[str, tuple[str, ...]]:
    """Directories that were seen but not listed, where being in a record means to be held whole."""
    found = {}
    for path, node in facts.nodes.items():
        if node.type == "d" and path not in facts.listings and whole_by_existing(path) and not _DEV.match(path):
            try:
                found[path] = host.listdir(path) or ()
            except Unknown:
                continue
    return found


def _put_node(layout: Layout, nodes: dict[str, Node], path: str, node: Node, text: Callable[[str], str]) -> None:
    if _FD.fullmatch(path.rpartition("/")[0]) and not (node.target or "").startswith(_GPU_TARGETS):
        return
    if node.type == "d" or (node.type == "l" and _SYSFS_LINK.fullmatch(path)):
        if path != "/" and not _ROOT.fullmatch(path):
            layout.directories.add(f"root{text(path)}")
    else:
        nodes[path] = node


def _asked(question: Callable[[str], Node | None], path: str) -> Node | None:
    try:
        return question(path)
    except Unknown:
        return None


def _with_parents(paths: set[str]) -> set[str]:
    found = set()
    for path in paths:
        while path and path not in found:
            found.add(path)
            path = path.rpartition("/")[0]
    return found


def _line(node: Node, text: Callable[[str], str]) -> dict[str, Any]:
    return dict(_members(node, text))


def _members(node: Node, text: Callable[[str], str]) -> Iterator[tuple[str, Any]]:
    yield "path", text(node.path)
    yield "type", node.type
    if node.type in ("b", "c"):
        yield "major", node.major
        yield "minor", node.minor
    yield "mode", f"{node.mode:04o}"
    yield "uid", node.uid
    yield "gid", node.gid
    if node.target is not None:
        yield "target", text(node.target)
    if node.size is not None:
        yield "size", node.size
    if node.ctime is not None:
        yield "ctime", node.ctime


def _put_json(layout: Layout, path: str, value: Any) -> None:
    layout.files[path] = f"{json.dumps(value, indent=1)}\n".encode()


def _same(text: str) -> str:
    return text
