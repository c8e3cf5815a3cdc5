# SPDX-License-Identifier: Apache-2.0
"""What a redacted record keeps of units, of scripts that boot and cron run, and of what engines write on containers.

All of these hold people's own commands, and often secrets: tokens on a command line, passwords in an environment.
"""

from __future__ import annotations

import json
import re
from typing import Any

from gpuiso.host.redact import Redactor

__all__ = ["CONTAINER_STATE", "SETTINGS", "device_lines", "without_values"]

#: Unit files and drop-ins, and scripts of boot and cron.
SETTINGS = re.compile(
    r"/(?:etc|run|usr/lib|usr/local/lib|lib)/systemd/system(?:\.control)?/.*|/run/systemd/transient/.*"
    r"|/etc/rc\.(?:local|d/.*)|/etc/cron.*|/var/spool/cron/.*|/usr/local/s?bin/.*"
)
#: What engines and runtimes keep of their containers; a bundle may lie anywhere.
CONTAINER_STATE = re.compile(
    r"/(?:run|var/(?:run|lib))/(?!kubelet/|rancher/).*\.json|/run/(?:user/\d+/)?crun/[^/]+/status"
    r"|/(?!etc/|proc/|sys/).*/(?:config|containers|volatile-containers)\.json"
)
#: Labels and annotations that say what a container is, and nothing of whose it is or what it does.
_KIND = re.compile(r"bundle|io\.container\.manager|io\.kubernetes\.(?:cri\.container-type|cri-o\.ContainerType)")

_DEVICE_LINE = re.compile(
    r"^\s*\[|^\s*(?:PrivateDevices|DevicePolicy|DeviceAllow|RootDirectory)\s*=|^#!"
    r"|\bdevices\.(?:allow|deny|list)\b|\bcgroup\.subtree_control\b|/gpu\.max\b"
)
_EXEC_LINE = re.compile(r"^(\s*Exec\w+\s*=\s*[-@:+!|]*\S+).*")


def device_lines(text: str) -> str:
    """The lines that decide about devices, and the program of each Exec line; line numbers stay."""
    return "\n".join(map(_kept_line, text.split("\n")))


def _kept_line(line: str) -> str:
    if _DEVICE_LINE.search(line):
        return line
    match = _EXEC_LINE.match(line)
    return "" if match is None else match[1]


def without_values(text: str, redactor: Redactor) -> str:
    """A JSON document with the values of environments, arguments and annotations replaced; no JSON gives nothing."""
    try:
        return json.dumps(_cleaned(json.loads(text), redactor))
    except (ValueError, RecursionError):
        return ""


def _cleaned(value: Any, redactor: Redactor) -> Any:
    if isinstance(value, list):
        return [_cleaned(each, redactor) for each in value]
    if not isinstance(value, dict):
        return value
    return {name: _member(name, each, redactor) for name, each in value.items()}


def _member(name: str, value: Any, redactor: Redactor) -> Any:
    key = name.lower()
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        if key == "env":
            return redactor.assignments(value)
        if key in ("args", "cmd", "command"):
            return [*value[:1], *map(redactor.value, value[1:])]
    if key in ("annotations", "labels"):
        if isinstance(value, dict):
            return {each: _tag(each, str(content), redactor) for each, content in value.items()}
        pairs = (str(each).partition("=") for each in value) if isinstance(value, list) else ()
        return [f"{each}={_tag(each, content, redactor)}" for each, _, content in pairs]
    if key == "metadata":
        return _metadata(value, redactor)
    return _cleaned(value, redactor)


def _tag(name: str, value: str, redactor: Redactor) -> str:
    return value if _KIND.fullmatch(name) else redactor.value(value)


def _metadata(value: Any, redactor: Redactor) -> str:
    """What containers/storage keeps for podman and CRI-O is JSON in a string; its members tell the two apart."""
    try:
        return json.dumps({name: redactor.value(str(each)) for name, each in json.loads(str(value)).items()})
    except (ValueError, AttributeError, RecursionError):
        return redactor.value(str(value))
