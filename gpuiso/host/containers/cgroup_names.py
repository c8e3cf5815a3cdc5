# SPDX-License-Identifier: Apache-2.0
"""What the path of a cgroup says about whose it is.

Engines name a container's cgroup after its id, systemd after the unit. The forms are those of runc's and crun's
systemd and cgroupfs drivers under Docker, podman, containerd and CRI-O, of LXC and of systemd-machined.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["CgroupName", "container_in_path", "unit_in_path"]


@dataclass(frozen=True, slots=True)
class CgroupName:
    """``path`` is the topmost cgroup of the container; ``engine`` None where the name fits several."""

    id: str
    engine: str | None
    path: str


_ENGINES = {
    "docker": "docker",
    "libpod": "podman",
    "cri-containerd": "containerd",
    "nerdctl": "containerd",
    "crio": "cri-o",
    "lxc": "lxc",
    "machine": "systemd-nspawn",
}
#: ``docker-ID.scope``; ``libpod-conmon-ID.scope`` and ``crio-conmon-ID.scope`` hold a monitor, not the container.
_SCOPE = re.compile(r"(?P<engine>docker|libpod|cri-containerd|nerdctl|crio)-(?P<id>[0-9a-f]{64})(?:\.scope)?")
_BARE = re.compile(r"[0-9a-f]{64}(?:\.scope)?")
_LXC = re.compile(r"lxc\.payload\.(?P<id>.+)")
_NSPAWN = re.compile(r"machine-(?!qemu|lxc|libvirt)(?P<id>.+)\.scope")
_ABOVE = {"docker": "docker", "libpod_parent": "podman", "nerdctl": "containerd"}

_UNIT = re.compile(r"[A-Za-z0-9:_.\\@-]+\.(?:service|scope|socket|mount|swap)")


def container_in_path(path: str) -> CgroupName | None:
    """The innermost container that a cgroup belongs to; None if no part of its path names one."""
    parts = path.split("/")
    for place in range(len(parts) - 1, 0, -1):
        found = _named(parts[place], parts[place - 1])
        if found is not None:
            return CgroupName(*found, "/".join(parts[: place + 1]))
    return None


def _named(part: str, above: str) -> tuple[str, str | None] | None:
    match = _SCOPE.fullmatch(part)
    if match is not None:
        return match["id"], _ENGINES[match["engine"]]
    if _BARE.fullmatch(part) is not None:
        return part.removesuffix(".scope"), _ABOVE.get(above)
    match = _LXC.fullmatch(part)
    if match is not None:
        return match["id"], "lxc"
    if above == "lxc" and part:
        return part, "lxc"
    match = _NSPAWN.fullmatch(part)
    if match is not None:
        return _unescaped(match["id"]), "systemd-nspawn"
    return None


def unit_in_path(path: str) -> str | None:
    """The unit of the system manager that a cgroup belongs to (sd_pid_get_unit(3)), None if it is in a slice alone.

    What a user's own manager runs belongs to that manager's unit, ``user@UID.service``.
    """
    for part in path.split("/")[1:]:
        name = part.removeprefix("_")  # systemd's escape for names that look like the kernel's own files
        if name.endswith(".slice"):
            continue
        return name if _UNIT.fullmatch(name) else None
    return None


def _unescaped(name: str) -> str:
    r"""systemd-escape(1): ``\x2d`` is a dash."""
    return re.sub(r"\\x([0-9a-f]{2})", lambda match: chr(int(match[1], 16)), name)
