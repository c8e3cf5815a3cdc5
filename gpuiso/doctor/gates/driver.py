# SPDX-License-Identifier: Apache-2.0
"""The last gate: a driver that registered the node's major."""

from __future__ import annotations

import re

from gpuiso.doctor.gates.model import Gate
from gpuiso.errors import Unknown
from gpuiso.gpu.majors import character_majors, nvidia_major, registered
from gpuiso.gpu.nvidia import CONTROL_MINOR, MODESET_MINOR
from gpuiso.host.decimals import decimal
from gpuiso.host.protocol import Host, Node

__all__ = ["driver_gate"]

_GPUS = "/proc/driver/nvidia/gpus"
_MINOR = re.compile(r"^Device Minor:\s*(\d{1,7})\s*$", re.MULTILINE)


def driver_gate(host: Host, node: Node) -> Gate:
    """Without a driver for the major, open(2) fails with ENXIO; so it does where the driver lacks the minor."""
    where = f"{node.type} {node.major}:{node.minor}"
    try:
        names = registered(host, node.type).get(node.major or 0, ())
    except Unknown as error:
        return Gate("driver", where, "unknown", "/proc/devices", error.message)
    if not names:
        return Gate("driver", where, "deny", "/proc/devices", f"no driver has major {node.major}", errno="ENXIO")
    belongs = f"major {node.major} belongs to {', '.join(names)}"
    known = _minors(host, node) if node.type == "c" and any(name.startswith("nvidia") for name in names) else None
    if known is None:
        says = f"{belongs} (whether it knows minor {node.minor} is not known)"
        return Gate("driver", where, "allow", "/proc/devices", says)
    if node.minor not in known:
        says = f"{belongs}, which has no device of minor {node.minor}"
        return Gate("driver", where, "deny", "the NVIDIA driver", says, errno="ENXIO")
    return Gate("driver", where, "allow", "/proc/devices", f"{belongs}, which has a device of minor {node.minor}")


def _minors(host: Host, node: Node) -> frozenset[int] | None:
    """The minors that the NVIDIA driver serves under the node's major, None if it does not tell."""
    majors = character_majors(host)
    if node.major == majors.get("nvidia-uvm"):
        return frozenset({0, 1})  # kernel-open/nvidia-uvm/uvm_common.h
    if node.major != nvidia_major(majors):
        return None
    try:
        gpus = host.listdir(_GPUS) or ()
        texts = [host.text(f"{_GPUS}/{gpu}/information") or "" for gpu in gpus]
    except Unknown:
        return None
    found = [decimal(match[1]) if (match := _MINOR.search(text)) else None for text in texts]
    minors = frozenset(minor for minor in found if minor is not None)
    return minors | {MODESET_MINOR, CONTROL_MINOR} if found and len(minors) == len(found) else None
