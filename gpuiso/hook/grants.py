# SPDX-License-Identifier: Apache-2.0
"""Which GPUs the grants of policy.d leave to a container, as ``gpuiso hook refresh`` compiled them.

``/run/gpuiso/hook/grants.json``: ``{"gpuiso": "hook-grants/1", "error": TEXT|null, "grants": [{"place": TEXT,
"slices": [NAME…], "containers": [[KEY, VALUE|null]…], "gpus": [ID…], "most": N|null, "gpu.max": TEXT|null}…]}``. It is
there only while grants limit containers. ``error`` is why the files could not be compiled: then nothing is granted.

The same rules as in :mod:`gpuiso.grants.decide`, for what a container asks for is what its runtime allows it.
"""

from __future__ import annotations

import os

from gpuiso.hook.errors import HookError
from gpuiso.hook.state import State, allowed_access
from gpuiso.hook.tables import GpuTable, table_document

__all__ = ["Grants", "asks_for_gpus", "hook_grants", "uncompiled"]

_NVIDIA, _DRM = 195, 226
_NO_DRIVER = (4095, (1 << 20) - 1)  # the last number that there is, which no driver has
_MANY = "all GPUs (it is privileged, or allowed every device)"


class Grants:
    """Compiled grants."""

    def __init__(self, document: dict[str, object], file: str) -> None:
        try:
            error, grants = document["error"], document["grants"]
            if not isinstance(grants, list):
                raise TypeError
            self.error = error if isinstance(error, str) else None
            self.grants = [_Grant(one) for one in grants]
        except (KeyError, TypeError, ValueError):
            raise HookError(f"{file} is damaged; run gpuiso hook refresh") from None

    def decide(
        self, state: State, cgroup: str, config: dict[str, object], table: GpuTable, chosen: list[str] | None
    ) -> tuple[list[str], str | None]:
        """The GPUs that a container may use, and its gpu.max.

        ``chosen`` are those that the command line and the annotations leave of what the runtime allows; None: all.

        :raises HookError: it is allowed GPUs that no grant gives.
        """
        named, limited = _named(config, table)
        if chosen is not None:
            named, limited = [one for one in named if one in chosen], True
        reasons = []
        for grant in self.grants:
            if grant.is_for(state.labels, cgroup):
                why = grant.refuses(named, limited=limited)
                if why is None:
                    return grant.gpus, grant.gpu_max
                reasons.append(f"{grant.place}: {why}")
        if not named or (not limited and not reasons):
            return [], None  # nobody gave it a GPU; a privileged one has them because it has everything
        why = "; ".join(reasons) or self.error or "no grant in policy.d is for this container"
        raise HookError(f"it may not have {', '.join(named) if limited else _MANY}: {why}")


class _Grant:
    __slots__ = ("containers", "gpu_max", "gpus", "most", "place", "slices")

    def __init__(self, document: dict[str, object]) -> None:
        self.place = str(document["place"])
        self.slices = frozenset(map(str, _list(document["slices"])))
        self.containers = [(str(key), value) for key, value in map(_list, _list(document["containers"]))]
        self.gpus = [str(one) for one in _list(document["gpus"])]
        most, gpu_max = document["most"], document["gpu.max"]
        self.most = most if isinstance(most, int) else None
        self.gpu_max = gpu_max if isinstance(gpu_max, str) else None

    def is_for(self, labels: dict[str, str], cgroup: str) -> bool:
        if self.slices:
            from gpuiso.policy.slices import slices_of

            if self.slices.intersection(slices_of(cgroup)):
                return True
        return any(key == "*" or (key in labels and value in (None, labels[key])) for key, value in self.containers)

    def refuses(self, named: list[str], *, limited: bool) -> str | None:
        """Why it does not give these GPUs; None if it does. Who has everything is left what is granted."""
        if limited and any(one not in self.gpus for one in named):
            return f"only the GPUs {', '.join(self.gpus) or '(none)'}"
        count = len(named) if limited else len(self.gpus)
        if self.most is not None and count > self.most:
            which = "" if limited else "; the annotation gpuiso.gpus says which"
            return f"at most {self.most} GPU{'' if self.most == 1 else 's'}{which}"
        return None


def asks_for_gpus(config: dict[str, object]) -> bool:
    """Whether the runtime gives the container a GPU by name, told by numbers, without the table of GPUs."""
    majors = _gpu_majors()
    linux = config.get("linux")
    if not isinstance(linux, dict):
        return False
    resources = linux.get("resources")
    rules = resources.get("devices") if isinstance(resources, dict) else None
    named = [rule for rule in _objects(rules) if rule.get("allow") is True]
    return any(entry.get("major") in majors for entry in [*named, *_objects(linux.get("devices"))])


def _objects(value: object) -> list[dict[str, object]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _gpu_majors() -> set[int]:
    """The majors of this host's drivers of GPUs; NVIDIA's and that of DRM are fixed."""
    found = {_NVIDIA, _DRM}
    with open("/proc/devices") as lines:
        for line in lines:
            number, _, name = line.strip().partition(" ")
            if number.isdigit() and name.startswith(("nvidia", "kfd", "drm")):
                found.add(int(number))
    return found


def uncompiled(sources: str, table: str) -> bool:
    """Whether there may be grants in ``sources``, and nothing was compiled since the host started."""
    if os.access(table, os.F_OK) or not os.path.lexists(sources):
        return False
    try:
        return any(not name.startswith(".") for name in os.listdir(sources))
    except OSError:
        return True


def hook_grants(path: str) -> Grants | None:
    """None if containers are not limited by grants. :raises HookError: the file cannot be trusted."""
    document = table_document(os.path.dirname(path), path, "hook-grants/1")
    return None if document is None else Grants(document, path)


def _named(config: dict[str, object], table: GpuTable) -> tuple[list[str], bool]:
    """The GPUs whose own nodes the runtime's rules allow, and whether these rules limit devices at all."""
    limited = not allowed_access(config, *_NO_DRIVER)
    named = [
        one
        for one, nodes in table.own.items()
        if nodes and all(set(allowed_access(config, *node)) & {"r", "w"} for node in nodes)
    ]
    return named, limited


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise TypeError
    return value
