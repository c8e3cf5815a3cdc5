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
#: What engines and runtimes keep of their containers.
CONTAINER_STATE = re.compile(r"/(?:run|var/(?:run|lib))/(?!kubelet/|rancher/).*\.json")

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
    if key in ("annotations", "labels", "metadata"):
        if isinstance(value, dict):
            return {each: redactor.value(str(content)) for each, content in value.items()}
        return [] if isinstance(value, list) else redactor.value(str(value))
    return _cleaned(value, redactor)
