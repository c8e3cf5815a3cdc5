# SPDX-License-Identifier: Apache-2.0
"""/proc/devices: which driver registered which major (proc_devices(5))."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from gpuiso.errors import Unknown
from gpuiso.host.decimals import decimal
from gpuiso.host.protocol import Host

__all__ = ["character_majors", "majors_by_name", "nvidia_major", "registered"]


def registered(host: Host, kind: str) -> dict[int, tuple[str, ...]]:
    """The names registered for each major of ``c`` (character) or ``b`` (block) devices.

    :raises Unknown: /proc/devices cannot be read.
    """
    return dict(_registered(_devices(host), kind))


def _devices(host: Host) -> str:
    text = host.text("/proc/devices")
    if text is None:
        raise Unknown("/proc/devices", "not there")
    return text


@lru_cache(maxsize=4)  # every access to a node asks
def _registered(text: str, kind: str) -> dict[int, tuple[str, ...]]:
    heading = "Character" if kind == "c" else "Block"
    found: dict[int, list[str]] = {}
    inside = False
    for line in text.splitlines():
        if line.endswith("devices:"):
            inside = line.startswith(heading)
            continue
        number, _, name = line.strip().partition(" ")
        major = decimal(number)
        if inside and major is not None:
            found.setdefault(major, []).append(name)
    return {major: tuple(dict.fromkeys(names)) for major, names in found.items()}


def character_majors(host: Host) -> Mapping[str, int]:
    """Majors of character devices by the name they were registered under, the first one where a name stands twice.

    :raises Unknown: /proc/devices cannot be read.
    """
    return majors_by_name(_devices(host))


def majors_by_name(text: str) -> dict[str, int]:
    """The same from the text of /proc/devices."""
    found: dict[str, int] = {}
    for major, names in _registered(text, "c").items():
        for name in names:
            found.setdefault(name, major)
    return found


def nvidia_major(majors: Mapping[str, int]) -> int | None:
    """The major of /dev/nvidiaN and /dev/nvidiactl, None if the driver is not loaded.

    Registered as ``nvidia`` today and as ``nvidia-frontend`` by drivers before R550.
    """
    return majors.get("nvidia", majors.get("nvidia-frontend"))
