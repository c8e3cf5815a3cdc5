# SPDX-License-Identifier: Apache-2.0
"""An access that was tried in the process's place, beside what follows from the gates."""

from __future__ import annotations

from gpuiso.doctor.gates.model import Gate
from gpuiso.errors import Unknown
from gpuiso.host.protocol import Host

__all__ = ["probe_gate"]

#: Which gate an errno speaks of: only a device filter answers EPERM, whatever the mode says.
_GATES = {"EACCES": "mode", "ENOENT": "path", "ENOTDIR": "path", "ENXIO": "driver"}


def probe_gate(host: Host, pid: int, path: str, access: str) -> Gate:
    """What a process met (in a record) or meets now (on a live host, where a child tries in its place)."""
    where = f"pid {pid}, {path}"
    try:
        errno = host.probe(pid, path, access)
    except Unknown as error:
        return Gate("probe", where, "unknown", "an access tried in its place", error.message)
    if errno is None:
        return Gate("probe", where, "allow", "an access tried in its place", f"{access} is granted")
    gate = _GATES.get(errno)
    if gate is None:
        gate = "cgroup-v1" if host.cgroup_mode == "legacy" else "cgroup-v2"
    return Gate(gate, where, "deny", "an access tried in its place", f"fails with {errno}", errno=errno)
