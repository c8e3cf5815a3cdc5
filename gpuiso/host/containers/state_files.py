# SPDX-License-Identifier: Apache-2.0
"""Reading the state that engines keep in files: small, and not always root's own.

What a rootless engine keeps belongs to its user. So files are read within bounds, an odd shape is the same as no
file, and what such a file says of a process counts only if the process agrees (:func:`first_process`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gpuiso.errors import NotFound, Unknown
from gpuiso.host import process
from gpuiso.host.cgroup_members import places
from gpuiso.host.containers.place import own_cgroup
from gpuiso.host.decimals import decimal
from gpuiso.host.protocol import Host

__all__ = ["MAX_STATE", "StateFiles", "environment", "mapping", "text_of"]

MAX_STATE = 4 << 20  # bytes; runc's state.json is the largest at 30 to 200 KiB
_TICKS = 100  # USER_HZ on every architecture that has GPUs


class StateFiles:
    """``missing`` says what could not be read and why. None of the methods raises."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.missing: dict[str, str] = {}

    def names(self, directory: str) -> tuple[str, ...]:
        """What a directory holds; nothing if it is not there or cannot be read."""
        try:
            return self.host.listdir(directory) or ()
        except Unknown as error:
            self.missing[directory] = error.why
            return ()

    def text(self, path: str) -> str | None:
        """A file as text."""
        try:
            data = self.host.read(path)
        except Unknown as error:
            self.missing[path] = error.why
            return None
        if data is None or len(data) > MAX_STATE:
            return None
        return data.decode("utf-8", "replace")

    def json(self, path: str) -> Any:
        """A JSON value, None for what is not there or no JSON."""
        text = self.text(path)
        if text is None:
            return None
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            self.missing[path] = "no JSON"
            return None

    def object(self, path: str) -> Mapping[str, Any] | None:
        """A JSON object."""
        return _object(self.json(path))

    def number(self, path: str) -> int | None:
        """A file with a pid in it."""
        text = (self.text(path) or "").strip()
        return int(text) if text.isascii() and text.isdecimal() and len(text) <= 10 else None

    def first_process(
        self,
        pid: int | None,
        identity: str,
        *,
        start: int | None = None,
        written: str | None = None,
        owner: int | None = None,
    ) -> tuple[int | None, tuple[str, ...]]:
        """The pid of a container's first process if it still is that, and its cgroups.

        It is if it started when the state says (``start``, clock ticks after boot), if its cgroup bears the
        container's id, or if it is older than the file (``written``) that names it. A user (``owner``) can only speak
        for processes in another user namespace than the host's.
        """
        if pid is None or pid <= 0:
            return None, ()
        try:
            cgroups = places(process.cgroups(self.host, pid))
            begun = process.start_time(self.host, pid)
            foreign = owner is not None and self._in_host_namespace(pid)
        except NotFound:
            return None, ()
        except Unknown:
            return pid, ()  # a record without that process, or a hidden /proc: nothing speaks against it
        if start is not None:
            same = start == begun
        else:
            same = own_cgroup(cgroups, identity) is not None or self._older(begun, written)
        return (pid, cgroups) if same and not foreign else (None, ())

    def _in_host_namespace(self, pid: int) -> bool:
        namespace = self.host.readlink(f"/proc/{pid}/ns/user")
        return namespace is not None and namespace == self.host.readlink("/proc/1/ns/user")

    def _older(self, begun: int, file: str | None) -> bool:
        """Whether a process began before a file was written; true where that cannot be told."""
        node = None
        boot = ""
        try:
            node = None if file is None else self.host.stat(file)
            boot = self.host.text("/proc/stat") or ""
        except Unknown:
            return True
        booted = next((line.split()[-1] for line in boot.splitlines() if line.startswith("btime ")), "")
        since = decimal(booted)
        if node is None or node.ctime is None or since is None:
            return True
        return since + begun / _TICKS <= node.ctime + 1

    def user_directories(self) -> tuple[tuple[int, str], ...]:
        """The runtime directories of users (XDG Base Directory, pam_systemd(8)), with their uids."""
        uids = ((decimal(name), name) for name in self.names("/run/user"))
        return tuple((uid, f"/run/user/{name}") for uid, name in uids if uid is not None)


def _object(value: Any) -> Mapping[str, Any] | None:
    return value if isinstance(value, dict) else None


def mapping(value: Any, *keys: str) -> Mapping[str, Any]:
    """The object below ``keys``, empty if one of them leads to something else."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def text_of(value: Any) -> str | None:
    """A string that is not empty."""
    return value if isinstance(value, str) and value else None


def environment(entries: Any) -> Mapping[str, str] | None:
    """``["NAME=VALUE", ...]`` as engines and OCI configs keep it; of a name that stands twice the first counts."""
    if not isinstance(entries, list):
        return None
    found: dict[str, str] = {}
    for entry in entries:
        if isinstance(entry, str) and "=" in entry:
            name, _, value = entry.partition("=")
            found.setdefault(name, value)
    return found
