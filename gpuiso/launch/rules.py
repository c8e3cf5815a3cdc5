# SPDX-License-Identifier: Apache-2.0
"""The device rules of a launch: of all GPUs only those that were leased; what is no GPU stays as it was.

They are a list of what is allowed, because systemd holds nothing else: every driver that is no GPU's, by its major,
and the nodes of the leased GPUs. A driver that is loaded later is not in the list.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpuiso.gpu.majors import registered
from gpuiso.gpu.model import Inventory
from gpuiso.grants.units import Unit
from gpuiso.host.protocol import Host
from gpuiso.policy.document import Document
from gpuiso.policy.parse import parse_statements
from gpuiso.policy.resolve import ResolvedPolicy, resolve

__all__ = ["launch_policy"]

_GPU_DRIVERS = ("nvidia", "drm", "kfd")
_PER_GPU = frozenset({"nvidia", "nvidia-frontend", "nvidiactl", "nvidia-uvm", "nvidia-caps", "drm", "kfd"})
"""Drivers that have nodes of single GPUs, or nodes without which no GPU works: a policy cannot widen these."""


def launch_policy(
    host: Host, inventory: Inventory, units: Sequence[Unit], policy: Document | None = None
) -> ResolvedPolicy:
    """Rules and limits of a launch that leased ``units``.

    With a ``policy`` of its own that speaks of devices, that decides about all that is no GPU.

    :raises BadPolicy: it names what is not here. :raises Unknown: /proc/devices cannot be read.
    """
    document = Document() if policy is None else policy
    leased = "\n".join(f"allow {unit.subject}" for unit in units)
    if document.statements is None:
        # Something is always said of devices: `allow default-nodes` is in every list.
        statements = [*parse_statements(_others(host)), *(parse_statements(leased) if leased else ())]
        default_allow = False
    else:
        statements = [
            *document.statements,
            *parse_statements(_closed(host)),
            *(parse_statements(leased) if leased else ()),
        ]
        default_allow = bool(document.default_allow)
    whole = replace(document, statements=tuple(statements), default_allow=default_allow)
    return resolve(whole, host, inventory=inventory)


def _others(host: Host) -> str:
    lines = ["allow default-nodes"]
    for kind in ("c", "b"):
        for major, names in sorted(registered(host, kind).items()):
            if kind == "b" or not any(name.startswith(_GPU_DRIVERS) for name in names):
                lines.append(f"allow {kind} {major}:* rwm")
    return "\n".join(lines)


def _closed(host: Host) -> str:
    majors = {major for major, names in registered(host, "c").items() if _PER_GPU.intersection(names)}
    return "\n".join(f"deny c {major}:* rwm" for major in sorted(majors | {195, 226}))
