# SPDX-License-Identifier: Apache-2.0
"""All gates between a process and a node, in the order of may_open() in fs/namei.c and chrdev_open()."""

from __future__ import annotations

from collections.abc import Iterator

from gpuiso.doctor.gates.cgroup import cgroup_gates, unified_gates
from gpuiso.doctor.gates.driver import driver_gate
from gpuiso.doctor.gates.lsm import lsm_gates
from gpuiso.doctor.gates.mode import mode_gate
from gpuiso.doctor.gates.model import Explanation, Gate
from gpuiso.doctor.gates.place import nodev_gate, path_gate
from gpuiso.doctor.gates.probe import probe_gate
from gpuiso.errors import NotFound, Unknown
from gpuiso.host.process import require, status
from gpuiso.host.protocol import Host
from gpuiso.host.way import way

__all__ = ["explain", "explain_cgroup"]


def explain(
    host: Host,
    pid: int,
    path: str,
    access: str = "rw",
    *,
    probe: bool = False,
    filters: bool = True,
    rules: bool = True,
) -> Explanation:
    """Whether ``pid`` may open ``path`` (in its own view) for ``access``, and which gate decides.

    ``access`` is a set of ``r``, ``w`` and ``m`` (mknod). With ``probe`` the access is tried as well, by a child in
    the process's place; what a record's probes met is taken in any case. ``filters=False`` leaves out the device
    filters of cgroups, for who asks those once for many processes; ``rules=False`` leaves out by which rule they
    decide, which takes far longer to find out than what they decide.

    :raises NotFound: no such process.
    """
    require(host, pid)
    passive = tuple(_passive(host, pid, path, access, filters, rules))
    probed = None
    # What is no device node is not opened as one; a child follows /proc/self to its own files.
    sensible = passive[0].errno != "ENODEV" and not (host.live and passive[0].verdict == "unknown")
    if (probe or not host.live) and sensible:
        probed = probe_gate(host, pid, path, access)
    if probed is not None and probed.verdict == "unknown" and not probe:
        probed = None
    return Explanation(path, access, passive, probed, pid=pid, notes=tuple(_notes(host, pid)))


def _passive(host: Host, pid: int, path: str, access: str, filters: bool, rules: bool) -> Iterator[Gate]:
    try:
        leads = way(host, pid, path)
        node = host.stat(f"/proc/{pid}/root{path}")
    except Unknown as error:
        yield Gate("path", path, "unknown", "the mount namespace", error.message)
        return
    first = path_gate(path, node)
    yield first
    if first.verdict != "allow" or node is None:
        return
    yield nodev_gate(host, pid, leads.path, node)
    yield mode_gate(host, pid, leads, node, access)
    if filters:
        yield from cgroup_gates(host, pid, node, access, rules=rules)
    yield from lsm_gates(host, pid, path)
    yield driver_gate(host, node)


def _notes(host: Host, pid: int) -> Iterator[str]:
    """What no gate tells, though it may stop the process before one is met."""
    try:
        who = status(host, pid)
    except Unknown:
        return
    if who.seccomp:
        yield "it has a seccomp filter (Seccomp in its status), which is not evaluated: it may refuse open(2) by itself"


def explain_cgroup(host: Host, cgroup: str, path: str, access: str = "rw") -> Explanation:
    """The same for whatever process is put into a v2 ``cgroup`` (a path below the root of the tree), as root.

    ``path`` is a node in this host's /dev.

    :raises NotFound: no such cgroup, or no such node.
    """
    node = host.stat(path)
    gate = path_gate(path, node)
    if node is None or gate.verdict != "allow":
        raise NotFound(f"{path}: {gate.says}")
    if host.device_programs(cgroup) is None:
        raise NotFound(f"no cgroup {cgroup} on {host.name}")
    gates = (gate, *unified_gates(host, cgroup, node, access), driver_gate(host, node))
    return Explanation(path, access, gates, cgroup=cgroup)
