# SPDX-License-Identifier: Apache-2.0
"""Who manages a cgroup: systemd, somebody it delegated to, or nobody.

A cgroup that systemd made is changed through its unit; below a unit with Delegate=yes the tree is its owner's to
arrange; everywhere else in systemd's tree there is one writer, and that is systemd (its CGROUP_DELEGATION document).
"""

from __future__ import annotations

from dataclasses import replace

from gpuiso.apply.calls import Calls
from gpuiso.apply.target import Place, Target
from gpuiso.errors import NotFound, NotSupported
from gpuiso.host.cgroup_mounts import cgroup_mount
from gpuiso.host.protocol import Host

__all__ = ["owned", "unit_target"]


def owned(host: Host, calls: Calls, target: Target) -> Target:
    """The target with its owner.

    :raises NotSupported: it is inside a unit that does not delegate.
    """
    place = target.v2 or target.v1
    if not host.systemd or place is None:
        return target
    unit = calls.unit_by_cgroup(place.cgroup)
    if unit is None:
        raise NotSupported(
            f"{place.cgroup} belongs to no unit of systemd, which manages this tree",
            hint="start what you run with systemd-run --scope --property=Delegate=yes and name a cgroup below that",
        )
    properties = calls.unit_properties(unit)
    home = str(properties.get("ControlGroup") or "")
    if home == place.cgroup:
        return replace(target, key=f"unit {unit}", unit=unit)
    if properties.get("Delegate"):
        return replace(target, delegated=(unit, home))
    raise NotSupported(
        f"{place.cgroup} is inside {unit}, which is systemd's and does not delegate",
        hint=f"apply the rules to the unit (--unit {unit}), or start what you run with "
        "systemd-run --scope --property=Delegate=yes and name a cgroup below that",
    )


def unit_target(host: Host, calls: Calls, unit: str) -> Target:
    """A unit by name; without a suffix it is a service. Its cgroup is None while it does not run.

    :raises NotSupported: no systemd here.
    :raises NotFound: no such unit.
    """
    if not host.systemd:
        raise NotSupported("systemd is not the service manager of this host", hint="name a cgroup with --cgroup")
    name = unit if "." in unit else f"{unit}.service"
    properties = calls.unit_properties(name)
    if "ControlGroup" not in properties:
        raise NotFound(f"{name} is a unit without processes, it has no cgroup")
    cgroup = str(properties["ControlGroup"] or "")
    mounts = {controller: cgroup_mount(host, controller) for controller in ("", "devices")}
    v2, v1 = (
        Place(mount, cgroup) if mount is not None and cgroup and _exists(calls, mount, cgroup) else None
        for mount in (mounts[""], mounts["devices"])
    )
    return Target(f"unit {name}", v2, v1, unit=name)


def _exists(calls: Calls, mount: str, cgroup: str) -> bool:
    try:
        with calls.cgroup(mount, cgroup):
            return True
    except FileNotFoundError:
        return False
