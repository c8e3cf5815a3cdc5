# SPDX-License-Identifier: Apache-2.0
"""Where a workload will live: a scope of systemd's, or a cgroup of its own below the one that it is started from.

Below, because then whatever limits the caller limits the workload too. In a unit with Delegate=yes that is so with
systemd as well, and the workload stays a part of its service.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from gpuiso.apply.calls import Calls
from gpuiso.apply.ownership import owned
from gpuiso.apply.target import Place, Target, cgroup_path, find_cgroup
from gpuiso.apply.verify import read_levels
from gpuiso.devfilter.interpret import Access
from gpuiso.devfilter.levels import judge
from gpuiso.errors import NotFound, NotSupported, UsageError
from gpuiso.grants.units import Unit
from gpuiso.host import process
from gpuiso.host.cgroup_mounts import cgroup_mount
from gpuiso.host.protocol import Host
from gpuiso.policy.rule import READ, WRITE

__all__ = ["Home", "closed_units", "find_home"]

_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,127}")


@dataclass(frozen=True)
class Home:
    """``above`` is the cgroup that it will be below. ``scope`` and ``slice`` are units, both None for a cgroup.

    ``target`` is that cgroup, which does not exist yet; None for a scope.
    """

    name: str
    mount: str
    above: str
    scope: str | None = None
    slice: str | None = None
    target: Target | None = None

    def __str__(self) -> str:
        if self.scope is not None:
            return f"{self.scope} in {self.slice}"
        return f"the cgroup {self.above.rstrip('/')}/{self.name}"


def find_home(host: Host, calls: Calls, name: str | None, slice_name: str | None) -> Home:
    """:raises NotSupported: no cgroup2 tree here. :raises UsageError: the name or slice cannot be one."""
    mount = cgroup_mount(host, "")
    now = process.unified_cgroup(host, os.getpid())
    if mount is None or now is None:
        hint = "boot with systemd.unified_cgroup_hierarchy=1"
        raise NotSupported("gpuiso run needs cgroup v2, and there is no cgroup2 tree here", hint=hint)
    if name is not None and not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} cannot be the name of a cgroup or unit", hint="letters, digits, and _ . - inside")
    full = f"gpuiso-{name or f'run-{os.urandom(4).hex()}'}"
    if not host.systemd:
        above = now if slice_name is None else cgroup_path(host, slice_name)
        return _below(host, calls, full, mount, above)
    unit = calls.unit_by_cgroup(now)
    properties = {} if unit is None else calls.unit_properties(unit)
    if slice_name is None and properties.get("Delegate"):
        return _below(host, calls, full, mount, str(properties["ControlGroup"]))
    return _scope(calls, full, mount, slice_name or str(properties.get("Slice") or "system.slice"))


def _below(host: Host, calls: Calls, name: str, mount: str, above: str) -> Home:
    target = find_cgroup(host, calls, f"{above.rstrip('/')}/{name}", create=True)
    if target.v2 is None or target.v2.exists:
        raise UsageError(f"there is a cgroup {above.rstrip('/')}/{name} already", hint="give another --name")
    return Home(name, mount, above, target=owned(host, calls, target))


def _scope(calls: Calls, name: str, mount: str, slice_name: str) -> Home:
    if "/" in slice_name:
        raise UsageError(f"--slice {slice_name}: a slice of systemd is a name, such as gpu.slice")
    slice_unit = slice_name if slice_name.endswith(".slice") else f"{slice_name}.slice"
    try:
        above = str(calls.unit_properties(slice_unit).get("ControlGroup") or "/")
    except NotFound:
        above = "/"  # systemd makes it with the scope
    return Home(name, mount, above, scope=f"{name}.scope", slice=slice_unit)


def closed_units(home: Home, units: list[Unit] | tuple[Unit, ...]) -> dict[str, str]:
    """The units that something above keeps from whoever lives there, by id, and what that is."""
    levels = read_levels(Place(home.mount, home.above))
    found = {}
    for unit in units:
        for path, major, minor in unit.nodes:
            verdict = judge(levels, Access("c", major, minor, READ | WRITE), rules=False)
            if verdict.value == "deny" and verdict.first_denial is not None:
                found[unit.id] = f"{unit} is denied below {verdict.first_denial.path} ({path})"
    return found
