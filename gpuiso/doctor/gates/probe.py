# SPDX-License-Identifier: Apache-2.0
"""An access that was tried in the process's place, beside what follows from the gates."""

from __future__ import annotations

from gpuiso.doctor.gates.model import Gate
from gpuiso.errors import Unknown
from gpuiso.host.protocol import Host

__all__ = ["probe_gate"]

#: Which gate an errno speaks of: only a device filter answers EPERM, whatever the mode says.
_GATES = {"EACCES": "mode", "ENOENT": "path", "ENOTDIR": "path", "ELOOP": "path", "ENXIO": "driver"}
_TRIED = "an access tried in its place"


def probe_gate(host: Host, pid: int, path: str, access: str) -> Gate:
    """What a process met (in a record) or meets now (on a live host, where a child tries in its place)."""
    where = f"pid {pid}, {path}"
    opened = access.replace("m", "")
    if not opened:
        return Gate("probe", where, "unknown", _TRIED, "mknod cannot be tried without making a node")
    try:
        errno = host.probe(pid, path, opened)
    except Unknown as error:
        return Gate("probe", where, "unknown", _TRIED, error.message)
    if errno is None and opened != access:
        return Gate("probe", where, "unknown", _TRIED, f"{opened} is granted; mknod cannot be tried")
    if errno is None:
        return Gate("probe", where, "allow", _TRIED, f"{access} is granted")
    gate = _GATES.get(errno, "probe")
    if errno == "EPERM":
        gate = "cgroup-v1" if host.cgroup_mode == "legacy" else "cgroup-v2"
    return Gate(gate, where, "deny", _TRIED, f"fails with {errno}", errno=errno)
