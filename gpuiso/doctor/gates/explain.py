# SPDX-License-Identifier: Apache-2.0
"""All gates between a process and a node, in the order of may_open() in fs/namei.c and chrdev_open()."""

from __future__ import annotations

from gpuiso.doctor.gates.cgroup import cgroup_gates
from gpuiso.doctor.gates.driver import driver_gate
from gpuiso.doctor.gates.model import Explanation, Gate
from gpuiso.doctor.gates.place import mode_gate, nodev_gate, path_gate
from gpuiso.errors import Unknown
from gpuiso.host.protocol import Host

__all__ = ["explain"]


def explain(host: Host, pid: int, path: str, access: str = "rw") -> Explanation:
    """Whether ``pid`` may open ``path`` (in its own view) for ``access``, and which gate decides.

    ``access`` is a set of ``r``, ``w`` and ``m`` (mknod).

    :raises NotFound: no such process.
    """
    try:
        node = host.stat(f"/proc/{pid}/root{path}")
    except Unknown as error:
        unknown = Gate("path", path, "unknown", "the mount namespace", error.message)
        return Explanation(path, access, (unknown,))
    gates = [path_gate(path, node)]
    if gates[0].verdict == "allow" and node is not None:
        gates.append(nodev_gate(host, pid, path))
        gates.append(mode_gate(host, pid, path, node, access))
        gates.extend(cgroup_gates(host, pid, node, access))
        gates.append(driver_gate(host, node))
    return Explanation(path, access, tuple(gates))
