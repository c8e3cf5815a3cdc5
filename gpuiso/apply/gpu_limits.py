# SPDX-License-Identifier: Apache-2.0
"""What holds gpu.max and gpu.memory.max on this host, and the steps for it.

Time: the kernel's own ``gpu.max`` file, should it ever have one, else the governor, which reads its registry. MPS has
no limit for a cgroup, only for a server or for what a client asks for itself. Memory: the dmem controller
(kernel/cgroup/dmem.c, since commit b168ed458dde, in v6.14), where a driver has regions in it.
"""

from __future__ import annotations

import os
from dataclasses import replace

from gpuiso.apply.steps import HoldShare, Step, WriteLimit
from gpuiso.apply.target import Target
from gpuiso.errors import NotSupported, Unknown
from gpuiso.govern.registry import REGISTRY, entry_content, entry_path
from gpuiso.govern.running import governor_runs
from gpuiso.host.cgroup_mounts import cgroup_mount
from gpuiso.host.protocol import Host
from gpuiso.policy.resolve import ResolvedPolicy

__all__ = ["memory_as_files", "share_steps"]

_HOW = (
    "needs the dmem controller (Linux 6.14 or later) and a driver with regions in it (amdgpu, xe, NVIDIA R610 or later)"
)


def share_steps(
    target: Target, policy: ResolvedPolicy, registry: str = REGISTRY
) -> tuple[tuple[Step, ...], tuple[str, ...]]:
    """The steps for gpu.max, and what a reader should know about it.

    :raises NotSupported: the target has no place in the v2 tree.
    """
    if policy.gpu_max is None:
        return (), ()
    if target.v2 is None:
        raise NotSupported(f"gpu.max is held by freezing, and {target.name} has no cgroup in the v2 tree")
    place, share = target.v2, str(policy.gpu_max)
    if place.exists and os.path.exists(f"{place.directory}/gpu.max"):
        return (WriteLimit(place.mount, place.cgroup, "gpu.max", (share,)),), ()
    step = HoldShare(
        entry_path(place.cgroup, registry), entry_content(place.cgroup, policy.gpu_max), place.cgroup, share
    )
    if governor_runs():
        return (step,), ()
    note = "no governor runs: gpu.max is held as soon as `gpuiso govern --follow` does"
    return (step,), (note,)


def memory_as_files(host: Host, policy: ResolvedPolicy) -> ResolvedPolicy:
    """The policy with its gpu.memory.max as lines of dmem.max, one for each region of the host.

    :raises NotSupported: nothing here can hold it; says what would.
    """
    if policy.memory_max is None:
        return policy
    mount = cgroup_mount(host, "")
    try:
        capacity = None if mount is None else host.text(f"{mount}/dmem.capacity")
    except Unknown:
        capacity = None
    regions = [line.split()[0] for line in (capacity or "").splitlines() if line.strip()]
    if not regions:
        raise NotSupported(f"gpu.memory.max {policy.memory_max} is not enforceable here: it {_HOW}")
    lines = tuple(f"{region} {policy.memory_max}" for region in regions)
    return replace(policy, files={**policy.files, "dmem.max": lines})
