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
from gpuiso.hook.text import read_file

__all__ = ["Grants", "asks_for_gpus", "hook_grants", "uncompiled"]

_LONGEST = 1 << 20
_NODES = ("/dev/nvidia", "/dev/dri/", "/dev/kfd")
_NVIDIA = 195
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
    """Whether the runtime gives the container a GPU by name, as far as that can be told without the table of GPUs."""
    linux = config.get("linux")
    devices = linux.get("devices") if isinstance(linux, dict) else None
    for device in devices if isinstance(devices, list) else ():
        path = device.get("path") if isinstance(device, dict) else None
        if isinstance(path, str) and path.startswith(_NODES):
            return bool(allowed_access(config, *_numbers_of(device)))
    limited = not allowed_access(config, *_NO_DRIVER)
    return limited and bool(allowed_access(config, _NVIDIA, 0))


def _numbers_of(device: dict[str, object]) -> tuple[int, int]:
    major, minor = device.get("major"), device.get("minor")
    return (major if type(major) is int else _NVIDIA, minor if type(minor) is int else 0)


def uncompiled(sources: str, table: str) -> bool:
    """Whether ``sources`` has grants for containers, and nothing was compiled since the host started."""
    if os.access(table, os.F_OK):
        return False
    try:
        names = os.listdir(sources)
    except OSError:
        return False
    return any(name.endswith((".yaml", ".yml", ".json")) and _may_limit(f"{sources}/{name}") for name in names)


def _may_limit(path: str) -> bool:
    try:
        data = read_file(path, _LONGEST)
    except (HookError, OSError):
        return False
    return b"grants" in data and b"containers" in data


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
