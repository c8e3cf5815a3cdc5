# SPDX-License-Identifier: Apache-2.0
"""Editing an OCI runtime config, member by member.

The edits give what the reference CDI library gives through runtime-tools, down to the members that its Go
structs always print (``ociVersion``, ``process.user``, ``process.cwd``) or never (null, empty lists). Members
that this module does not know are kept.
"""

from __future__ import annotations

import copy
import posixpath
from typing import Any

from gpuiso.errors import BadInput
from gpuiso.oci.json_text import read_json

__all__ = ["OciConfig", "parse_config"]

# What config.md says must be an object, and what a list, among the members that edits go through.
_OBJECTS = (
    ("process",),
    ("process", "user"),
    ("linux",),
    ("linux", "resources"),
    ("hooks",),
    ("linux", "netDevices"),
)
_LISTS = (
    ("mounts",),
    ("process", "env"),
    ("process", "user", "additionalGids"),
    ("linux", "devices"),
    ("linux", "resources", "devices"),
    ("linux", "namespaces"),
)
_ROWS = (("mounts",), ("linux", "devices"), ("linux", "resources", "devices"), ("linux", "namespaces"))


def parse_config(text: str, file: str) -> dict[str, Any]:
    """The OCI config in ``text``. Raises BadInput if it is no JSON object, gives a key twice, or a member
    has the wrong shape.
    """
    config = read_json(text, file, "not an OCI config")
    if not isinstance(config, dict):
        raise BadInput("not an OCI config: the top of the document must be an object", file=file)
    for paths, kind, word in ((_OBJECTS, dict, "an object"), (_LISTS, list, "a list")):
        for path in paths:
            value = _member(config, path)
            if value is not None and not isinstance(value, kind):
                raise BadInput(f"not an OCI config: {'.'.join(path)} must be {word}", file=file)
    for path in _ROWS:
        for index, row in enumerate(_member(config, path) or ()):
            if not isinstance(row, dict):
                raise BadInput(f"not an OCI config: {'.'.join(path)}[{index}] must be an object", file=file)
    for name, hooks in (config.get("hooks") or {}).items():
        if hooks is not None and not isinstance(hooks, list):
            raise BadInput(f"not an OCI config: hooks.{name} must be a list", file=file)
    for name in ("uid", "gid"):
        number = _member(config, ("process", "user", name))
        if number is not None and type(number) is not int:
            raise BadInput(f"not an OCI config: process.user.{name} must be an integer", file=file)
    for index, mount in enumerate(config.get("mounts") or ()):
        if not isinstance(mount.get("destination", ""), str):
            raise BadInput(f"not an OCI config: mounts[{index}].destination must be text", file=file)
    return config


def _member(config: dict[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = config
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return value


class OciConfig:
    """An OCI config under edit: a deep copy of ``config``, in ``document``."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.document = copy.deepcopy(config)
        # runtime-tools remembers whole entries here, so a later NAME=VALUE never replaces one the config
        # brought.
        self._env = {entry: index for index, entry in enumerate(self._list("process", "env"))}

    @property
    def user(self) -> tuple[int, int] | None:
        """uid and gid of the process, None if the config has no process."""
        process = self.document.get("process")
        if process is None:
            return None
        user = process.get("user") or {}
        return user.get("uid") or 0, user.get("gid") or 0

    def finish(self) -> dict[str, Any]:
        """The edited config."""
        self.document.setdefault("ociVersion", "")
        if self.document.get("process") is not None:
            self._process()
        for path in ((), *_OBJECTS):
            member = _member(self.document, path)
            for name in [name for name, value in (member or {}).items() if value is None or value == []]:
                del member[name]
        return self.document

    def set_env(self, entry: str) -> None:
        """Add ``NAME=VALUE``, in place of an earlier one that this method added."""
        name = entry.partition("=")[0]
        env = self._made("env", self._process())
        if name in self._env:
            env[self._env[name]] = entry
        else:
            self._env[name] = len(env)
            env.append(entry)

    def set_device(self, device: dict[str, Any]) -> None:
        """Put a row into ``linux.devices``, last; the first row of the same path goes."""
        devices = self._made("devices", self._linux())
        _drop_first(devices, "path", device["path"])
        devices.append(device)

    def allow_device(self, kind: str, major: int, minor: int, access: str) -> None:
        """Append an allow rule to ``linux.resources.devices``."""
        rule = {"allow": True, "type": kind, "major": major, "minor": minor, "access": access}
        resources = self.document_member(self._linux(), "resources")
        self._made("devices", resources).append(rule)

    def set_net_device(self, host_name: str, name: str) -> None:
        self.document_member(self._linux(), "netDevices")[host_name] = {"name": name}

    def set_mount(self, mount: dict[str, Any]) -> None:
        """Append a mount; the first one of the same destination goes."""
        mounts = self._made("mounts", self.document)
        _drop_first(mounts, "destination", mount["destination"])
        mounts.append(mount)

    def sort_mounts(self) -> None:
        """Order the mounts by the depth of their destinations, keeping the order of equals."""
        self._list("mounts").sort(key=lambda mount: _depth(mount.get("destination") or ""))

    def add_hook(self, name: str, hook: dict[str, Any]) -> None:
        hooks = self.document_member(self.document, "hooks")
        self._made(name, hooks).append(hook)

    def set_intel_rdt(self, rdt: dict[str, Any]) -> None:
        self._linux()["intelRdt"] = rdt

    def add_gid(self, gid: int) -> None:
        """Add a supplementary group unless it is there."""
        gids = self._made("additionalGids", self._process()["user"])
        if gid not in gids:
            gids.append(gid)

    @staticmethod
    def document_member(parent: dict[str, Any], name: str) -> dict[str, Any]:
        """The object ``name`` of ``parent``, made if it is missing or null."""
        if parent.get(name) is None:
            parent[name] = {}
        member: dict[str, Any] = parent[name]
        return member

    @staticmethod
    def _made(name: str, parent: dict[str, Any]) -> list[Any]:
        if parent.get(name) is None:
            parent[name] = []
        made: list[Any] = parent[name]
        return made

    def _list(self, *path: str) -> list[Any]:
        return _member(self.document, path) or []

    def _linux(self) -> dict[str, Any]:
        return self.document_member(self.document, "linux")

    def _process(self) -> dict[str, Any]:
        process = self.document_member(self.document, "process")
        user = self.document_member(process, "user")
        user.setdefault("uid", 0)
        user.setdefault("gid", 0)
        process.setdefault("cwd", "")
        return process


def _drop_first(rows: list[Any], key: str, value: str) -> None:
    for index, row in enumerate(rows):
        if row.get(key) == value:
            del rows[index]
            return


def _depth(destination: str) -> int:
    """Slashes in the cleaned path, as filepath.Clean of Go gives it: empty becomes ".", "//" one slash."""
    clean = posixpath.normpath(destination or ".")
    return (clean[1:] if clean.startswith("//") else clean).count("/")
