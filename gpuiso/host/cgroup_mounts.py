# SPDX-License-Identifier: Apache-2.0
"""Where the cgroup hierarchies are mounted."""

from __future__ import annotations

from gpuiso.errors import NotFound, Unknown
from gpuiso.host.mounts import mounts
from gpuiso.host.protocol import Host

__all__ = ["cgroup_mount", "cgroup_mounts"]


def cgroup_mounts(host: Host, process: int | str = "self") -> dict[str, str]:
    """Mount points by v1 controller; the v2 tree stands under the empty name, as in /proc/PID/cgroup.

    :raises Unknown: the mount table was not recorded.
    """
    found: dict[str, str] = {}
    for mount in mounts(host, process):
        if mount.fstype == "cgroup2":
            found.setdefault("", mount.point)
        elif mount.fstype == "cgroup":
            for option in mount.super_options - {"rw", "ro"}:
                found.setdefault(option, mount.point)
    return found


def cgroup_mount(host: Host, controller: str) -> str | None:
    """Where one hierarchy is mounted, None if it is not. A record without a mount table has the usual places."""
    try:
        return cgroup_mounts(host).get(controller)
    except (Unknown, NotFound):
        if controller:
            return None if host.cgroup_mode == "unified" else f"/sys/fs/cgroup/{controller}"
        return {"unified": "/sys/fs/cgroup", "hybrid": "/sys/fs/cgroup/unified", "legacy": None}[host.cgroup_mode]
