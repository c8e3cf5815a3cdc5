# SPDX-License-Identifier: Apache-2.0
"""What a process has open already: no gate takes that away, for they act on open(2) and mknod(2) alone."""

from __future__ import annotations

from gpuiso.errors import NotFound, Unknown
from gpuiso.host.process import device_descriptors
from gpuiso.host.protocol import Host

__all__ = ["descriptors_on"]


def descriptors_on(host: Host, pid: int, path: str) -> int:
    """How many descriptors ``pid`` holds on a node; 0 also where that may not be looked at."""
    try:
        return device_descriptors(host, pid, (path,)).get(path, 0)
    except (NotFound, Unknown):
        return 0
