# SPDX-License-Identifier: Apache-2.0
"""Who holds GPUs: descriptors on their nodes, found in /proc rather than asked of a driver.

NVML lists neither processes of a dead parent, nor those of another pid namespace, nor a process that opened a node
without making a context. /proc lists all of them.
"""

from __future__ import annotations

from gpuiso.errors import NotFound, Unknown
from gpuiso.gpu.model import Holder
from gpuiso.host.process import command_name, device_descriptors
from gpuiso.host.protocol import Host

__all__ = ["GPU_NODES", "find_holders"]

#: Path prefixes of GPU nodes. A container sees its nodes under the same names.
GPU_NODES = ("/dev/nvidia", "/dev/dri/", "/dev/kfd")


def find_holders(host: Host) -> tuple[tuple[Holder, ...], tuple[int, ...]]:
    """Holders by pid and node, and the pids whose descriptors may not be looked at.

    :raises Unknown: the host does not tell which processes there are.
    """
    holders: list[Holder] = []
    closed: list[int] = []
    for pid in host.pids():
        try:
            descriptors = device_descriptors(host, pid, GPU_NODES)
        except NotFound:
            continue  # it ended while we looked
        except Unknown:
            closed.append(pid)
            continue
        comm = command_name(host, pid) if descriptors else ""
        holders.extend(Holder(pid, comm, node, count) for node, count in sorted(descriptors.items()))
    return tuple(holders), tuple(closed)
