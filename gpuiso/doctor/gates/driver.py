# SPDX-License-Identifier: Apache-2.0
"""The last gate: a driver that registered the node's major."""

from __future__ import annotations

from gpuiso.doctor.gates.model import Gate
from gpuiso.errors import Unknown
from gpuiso.gpu.majors import registered
from gpuiso.host.protocol import Host, Node

__all__ = ["driver_gate"]


def driver_gate(host: Host, node: Node) -> Gate:
    """Without a driver for the major, open(2) fails with ENXIO."""
    where = f"{node.type} {node.major}:{node.minor}"
    try:
        names = registered(host, node.type).get(node.major or 0, ())
    except Unknown as error:
        return Gate("driver", where, "unknown", "/proc/devices", error.message)
    if not names:
        return Gate("driver", where, "deny", "/proc/devices", f"no driver has major {node.major}", errno="ENXIO")
    return Gate("driver", where, "allow", "/proc/devices", f"major {node.major} belongs to {', '.join(names)}")
