# SPDX-License-Identifier: Apache-2.0
"""Which gpu.max is held for a cgroup: by the governor's registry, or by a launch with ``--gpu-max``."""

from __future__ import annotations

import json

from gpuiso.apply.state import RUN_DIRECTORY
from gpuiso.govern.registry import entry_path
from gpuiso.host.protocol import Host
from gpuiso.launch.lease import Lease
from gpuiso.policy.limits import GpuMax, parse_gpu_max

__all__ = ["held_share"]

_LEASES = f"{RUN_DIRECTORY}/leases"


def held_share(host: Host, cgroup: str) -> GpuMax | None:
    """The smallest share for a cgroup and those above it, None if there is none. Whether a governor runs is not asked.

    :raises Unknown: the host does not tell.
    """
    parts = [part for part in cgroup.split("/") if part]
    levels = ["/" + "/".join(parts[:end]) for end in range(1, len(parts) + 1)]
    texts = [host.text(entry_path(level)) for level in levels]
    found = [_registered(text) for text in texts if text is not None]
    for name in host.listdir(_LEASES) or ():
        if name.endswith(".lease"):
            found.append(_leased(host.text(f"{_LEASES}/{name}") or "", levels))
    return min((share for share in found if share is not None), key=lambda share: share.share, default=None)


def _registered(text: str) -> GpuMax | None:
    try:
        return parse_gpu_max(str(json.loads(text)["gpu.max"]))
    except (ValueError, KeyError, TypeError):
        return None  # the governor does not obey it either


def _leased(text: str, levels: list[str]) -> GpuMax | None:
    try:
        lease = Lease.from_text(text)
        if lease.gpu_max is None or lease.cgroup is None or lease.cgroup.path not in levels:
            return None
        return parse_gpu_max(lease.gpu_max)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None  # ended meanwhile, or damaged: gpuiso leases says so
