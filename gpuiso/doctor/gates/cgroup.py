# SPDX-License-Identifier: Apache-2.0
"""The device filters of every cgroup level, v2 first, then the v1 controller, as devcgroup_check_permission() asks."""

from __future__ import annotations

from collections.abc import Iterator

from gpuiso.devfilter.interpret import Access
from gpuiso.devfilter.levels import Level, LevelVerdict, judge
from gpuiso.doctor.gates.model import Gate
from gpuiso.errors import NotFound, Unknown
from gpuiso.host.cgroup_mounts import cgroup_mount, in_cgroup_namespace
from gpuiso.host.process import cgroups
from gpuiso.host.protocol import Host, Node
from gpuiso.policy.rule import mask

__all__ = ["cgroup_gates", "unified_gates"]


def levels(path: str) -> Iterator[str]:
    """A cgroup and all its ancestors, the root first."""
    yield "/"
    parts = [part for part in path.split("/") if part]
    for end in range(1, len(parts) + 1):
        yield "/" + "/".join(parts[:end])


def cgroup_gates(host: Host, pid: int, node: Node, access: str, *, rules: bool = True) -> tuple[Gate, ...]:
    """One gate for each level that carries a program (or one that says that none does), and one for v1.

    ``rules=False``: without the rule of a program that decides.
    """
    try:
        places = cgroups(host, pid)
    except Unknown as error:
        return (Gate("cgroup-v2", f"pid {pid}", "unknown", "the cgroup tree", error.message),)
    gates: list[Gate] = []
    # A live host without a mounted v2 tree has one all the same once it was mounted, and its programs run.
    if "" in places and (host.live or places[""] != "/" or _may_be_unified(host)):
        gates.extend(unified_gates(host, places[""], node, access, rules=rules))
    if "devices" in places:
        gates.append(_v1_gate(host, places["devices"], node, access))
    return tuple(gates)


def _may_be_unified(host: Host) -> bool:
    try:
        return host.cgroup_mode != "legacy"
    except Unknown:
        return True  # what is recorded of its programs tells


def unified_gates(host: Host, cgroup: str, node: Node, access: str, *, rules: bool = True) -> Iterator[Gate]:
    """The gates of a v2 cgroup and its ancestors, from the root of the tree down."""
    if ".." in cgroup.split("/"):
        says = "it lies outside of the cgroup namespace that gpuiso runs in, so its device programs cannot be seen"
        yield Gate("cgroup-v2", cgroup, "unknown", "the device filter", says)
        return
    asked = Access("b" if node.type == "b" else "c", node.major or 0, node.minor or 0, mask(access))
    read: list[Level] = []
    unread: dict[str, str] = {}
    for path in levels(cgroup):
        try:
            programs = host.device_programs(path)
        except Unknown as error:
            unread[path] = error.message
            programs = None
        else:
            if programs is None:  # one with a process in it cannot be gone: something covers it
                unread[path] = f"no cgroup {path} is to be seen, so neither are its device programs"
        read.append(Level(path, programs))
    silent = True
    for level in judge(read, asked, maps=host.bpf_map, helpers=host.kernel_function, rules=rules).levels:
        if level.path in unread:
            yield Gate("cgroup-v2", level.path, "unknown", "the device filter", unread[level.path])
        elif level.programs:
            yield _gate(level)
        else:
            continue
        silent = False
    if silent:
        yield Gate("cgroup-v2", cgroup, "allow", "the device filter", "no level carries a device program")


def _gate(level: LevelVerdict) -> Gate:
    decisive = next((program for program in level.programs if program.value == level.value), level.programs[0])
    name = f"program {decisive.program.id}" + (f" ({decisive.program.name})" if decisive.program.name else "")
    return Gate(
        "cgroup-v2",
        level.path,
        level.value,
        f"{decisive.owner.name}, {name}",
        level.why,
        rule=decisive.rule if decisive.value == level.value and level.overridden is None else None,
        errno="EPERM" if level.value == "deny" else None,
    )


def _v1_gate(host: Host, cgroup: str, node: Node, access: str) -> Gate:
    """The v1 controller looks at the process's own cgroup alone; its list is never wider than its parent's."""
    mount = cgroup_mount(host, "devices") or "/sys/fs/cgroup/devices"
    path = f"{mount}{cgroup.rstrip('/')}/devices.list"
    if ".." in cgroup.split("/"):
        says = "it lies outside of the cgroup namespace that gpuiso runs in"
        return Gate("cgroup-v1", cgroup, "unknown", "the devices controller", says)
    if cgroup == "/" and not (host.live and in_cgroup_namespace(host)):
        return Gate("cgroup-v1", "/", "allow", "the devices controller", "the root cgroup has no rules")
    if cgroup == "/" and cgroup_mount(host, "devices") is None:
        # A container of a hybrid machine with a v2 tree of its own: whoever rules there rules through v2.
        says = "the hierarchy is not mounted here, and the process is at the root of what can be seen of it"
        return Gate("cgroup-v1", "/", "allow", "the devices controller", says)
    try:
        text = host.text(path)
    except (Unknown, NotFound) as error:
        return Gate("cgroup-v1", cgroup, "unknown", "the devices controller", error.message)
    if text is None:
        return Gate("cgroup-v1", cgroup, "unknown", "the devices controller", f"{path} does not exist")
    lines = text.split("\n")
    if any(line.startswith("a ") for line in lines):
        says = f"{path} shows a *:* rwm, and the kernel does not show exceptions to it"
        return Gate("cgroup-v1", cgroup, "unknown", "the devices controller", says, rule="a *:* rwm")
    for line in lines:
        if _v1_matches(line, node, access):
            return Gate("cgroup-v1", cgroup, "allow", "the devices controller", f"{path}: {line}", rule=line)
    says = f"{path} has no line that allows {node.type} {node.major}:{node.minor} {access}"
    return Gate("cgroup-v1", cgroup, "deny", "the devices controller", says, errno="EPERM")


def _v1_matches(line: str, node: Node, access: str) -> bool:
    fields = line.split()
    if len(fields) != 3 or fields[0] != node.type:
        return False
    major, _, minor = fields[1].partition(":")
    return major in ("*", str(node.major)) and minor in ("*", str(node.minor)) and set(access) <= set(fields[2])
