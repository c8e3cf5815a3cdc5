# SPDX-License-Identifier: Apache-2.0
"""Where the cgroup hierarchies are mounted."""

from __future__ import annotations

from gpuiso.errors import NotFound, Unknown
from gpuiso.host.mounts import mounts
from gpuiso.host.protocol import Host

__all__ = ["cgroup_mount", "cgroup_mounts", "in_cgroup_namespace", "unified_tree"]

_INITIAL = "cgroup:[4026531835]"  # include/linux/proc_ns.h, PROC_CGROUP_INIT_INO


def cgroup_mounts(host: Host, process: int | str = "self") -> dict[str, str]:
    """Mount points by v1 controller; the v2 tree stands under the empty name, as in /proc/PID/cgroup.

    A mount of a whole hierarchy goes before one of a part of it.

    :raises Unknown: the mount table was not recorded.
    """
    found: dict[str, str] = {}
    for mount in sorted(mounts(host, process), key=lambda mount: mount.root != "/"):
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


def unified_tree(host: Host) -> tuple[str, str] | None:
    """Where the v2 tree is mounted, and from which of its cgroups on (``/``: all of it); None if it is not.

    :raises Unknown: the mount table was not recorded.
    """
    found = sorted((m for m in mounts(host, "self") if m.fstype == "cgroup2"), key=lambda mount: mount.root != "/")
    return (found[0].point, found[0].root) if found else None


def in_cgroup_namespace(host: Host) -> bool:
    """Whether this program runs in a cgroup namespace other than the machine's: then ``/`` is not the root."""
    return host.readlink("/proc/self/ns/cgroup") not in (_INITIAL, None)
