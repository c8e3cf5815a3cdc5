# SPDX-License-Identifier: Apache-2.0
"""What a runtime tells a hook: the state on standard input, and the bundle's config.json.

Shapes: opencontainers/runtime-spec, schema/state-schema.json and config.md. Runtimes of other versions are
tolerated: members that are not needed may have any shape, ``bundlePath`` is the bundle of runtimes before 1.0,
``root`` the root filesystem that crun adds.
"""

from __future__ import annotations

import os

from gpuiso.hook.errors import HookError
from gpuiso.hook.text import decode_object, read_bounded, read_file

__all__ = [
    "CONFIG_LIMIT",
    "STATE_LIMIT",
    "State",
    "allowed_access",
    "read_config",
    "read_state",
    "rootfs_path",
    "visible_gpus",
]

STATE_LIMIT = 4 << 20
CONFIG_LIMIT = 16 << 20


class State:
    """``pid`` is 0 where the runtime gives none (after the container's end).

    ``annotations`` are gpuiso's own, ``labels`` are all that are text.
    """

    __slots__ = ("annotations", "bundle", "id", "labels", "pid", "root")

    def __init__(self, document: dict[str, object]) -> None:
        self.id = _text(document, "id")
        self.bundle = _text(
            document, "bundle" if "bundle" in document or "bundlePath" not in document else "bundlePath"
        )
        if not self.id:
            raise HookError("the state names no container: id is empty")
        if not self.bundle.startswith("/"):
            raise HookError("the state's bundle is no absolute path")
        pid = document.get("pid") or 0
        if type(pid) is not int or pid < 0:
            raise HookError("the state's pid is no process number")
        self.pid = pid
        root = document.get("root")
        self.root = root if isinstance(root, str) and root.startswith("/") and "\0" not in root else None
        self.labels, self.annotations = _annotations(document.get("annotations"))


def read_state(fd: int = 0) -> State:
    """:raises HookError: no state can be read from ``fd``."""
    try:
        data = read_bounded(fd, STATE_LIMIT, "the state on standard input")
    except OSError as error:
        raise HookError(f"no state on standard input: {error.strerror}") from None
    return State(decode_object(data, "the state on standard input"))


def read_config(bundle: str) -> dict[str, object]:
    """The bundle's config.json. :raises HookError: there is none that can be read."""
    path = f"{bundle}/config.json"
    try:
        return decode_object(read_file(path, CONFIG_LIMIT), path)
    except OSError as error:
        raise HookError(f"{path}: {error.strerror}") from None


def rootfs_path(state: State, config: dict[str, object]) -> str:
    """Where the root filesystem lies. :raises HookError: the config does not say."""
    if state.root is not None:
        return state.root
    root = config.get("root")
    path = root.get("path") if isinstance(root, dict) else None
    if not isinstance(path, str) or not path or "\0" in path:
        raise HookError(f"{state.bundle}/config.json: root.path is missing")
    return os.path.join(state.bundle, path)


def visible_gpus(config: dict[str, object]) -> list[int]:
    """The numbers N of the /dev/nvidiaN that the config makes in the container."""
    linux = config.get("linux")
    devices = linux.get("devices") if isinstance(linux, dict) else None
    found = set()
    for device in devices if isinstance(devices, list) else ():
        path = device.get("path") if isinstance(device, dict) else None
        if isinstance(path, str) and path.startswith("/dev/nvidia"):
            number = path.removeprefix("/dev/nvidia")
            if number.isascii() and number.isdigit() and len(number) <= 3:
                found.add(int(number))
    return sorted(found)


def allowed_access(config: dict[str, object], major: int, minor: int) -> str:
    """The accesses to a character device that the config's rules allow; of several rules the later wins."""
    linux = config.get("linux")
    resources = linux.get("resources") if isinstance(linux, dict) else None
    rules = resources.get("devices") if isinstance(resources, dict) else None
    found = {"r": False, "w": False, "m": False}
    for rule in rules if isinstance(rules, list) else ():
        if not isinstance(rule, dict) or rule.get("type") not in (None, "", "a", "c"):
            continue
        # None and -1 stand for every number.
        if rule.get("major") in (None, -1, major) and rule.get("minor") in (None, -1, minor):
            access = rule.get("access")
            for letter in access if isinstance(access, str) and access else "rwm":
                if letter in found:
                    found[letter] = rule.get("allow") is True
    return "".join(letter for letter, allowed in found.items() if allowed)


def _text(document: dict[str, object], name: str) -> str:
    value = document.get(name)
    if not isinstance(value, str):
        raise HookError(f"the state's {name} is {'missing' if value is None else 'no text'}")
    if "\0" in value:
        raise HookError(f"the state's {name} holds a NUL")
    return value


def _annotations(value: object) -> tuple[dict[str, str], dict[str, str]]:
    """All that are text, and of these gpuiso's; what others may be is theirs."""
    if value is None:
        return {}, {}
    if not isinstance(value, dict):
        raise HookError("the state's annotations are no object")
    found = {name: text for name, text in value.items() if isinstance(text, str)}
    own = {}
    for name in value:
        if name.startswith("gpuiso."):
            if name not in found:
                raise HookError(f"the annotation {name} is no text")
            own[name] = found[name]
    return found, own
