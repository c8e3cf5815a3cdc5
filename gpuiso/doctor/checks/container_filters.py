# SPDX-License-Identifier: Apache-2.0
"""Containers whose device filter does not know their GPUs: lost since, never allowed, or soon to be lost.

A legacy hook allows GPU nodes by changing the container's device program; neither the runtime nor systemd know of it.
Whoever writes the filter again, on ``systemctl daemon-reload``, ``docker update`` or by kubelet's CPU manager, writes
one without them. runc 1.1.3 to 1.1.6 also leaves nodes out of systemd's list that have no link in /dev/char.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from shlex import quote

from gpuiso.doctor.checks.denial import Cause, Denial
from gpuiso.doctor.checks.scope_devices import (
    DEVCHAR,
    LASTING,
    NOTICE,
    affected,
    allow_in_scope,
    config_of,
    in_view,
    known_to_runtime,
    lacking,
    link_fixes,
    missing_links,
    runc_evidence,
    scope_of,
    settings_of,
)
from gpuiso.doctor.finding import Evidence, Fix, Rule
from gpuiso.doctor.machine import Subject
from gpuiso.doctor.toolkit import in_user_namespace, toolkit_config
from gpuiso.errors import Unknown
from gpuiso.host.containers import Container
from gpuiso.host.mounts import mounts

__all__ = [
    "CONTAINER_UPDATE_LOSS",
    "DEVCHAR",
    "NVCT_NOCGROUPS",
    "RELOAD_LOSS",
    "never_allowed",
    "updated",
    "written_again",
]


RELOAD_LOSS = Rule(
    "GPU-SYSTEMD-RELOAD-LOSS",
    "error",
    "systemd took the container's GPUs away",
    "access was added behind systemd's back, and a daemon-reload or a change of the scope applied a list without GPUs",
    (
        NOTICE,
        "https://github.com/NVIDIA/nvidia-docker/issues/1730",
        "https://github.com/opencontainers/runc/issues/4859",
    ),
)
CONTAINER_UPDATE_LOSS = Rule(
    "GPU-CONTAINER-UPDATE-LOSS",
    "error",
    "An update of the container took its GPUs away",
    "docker update, or kubelet's static CPU manager, made the runtime write its device list again, without the GPUs",
    (
        "https://github.com/NVIDIA/nvidia-docker/issues/515",
        "https://github.com/NVIDIA/nvidia-container-toolkit/issues/138",
        "https://github.com/kubernetes/kubernetes/issues/77073",
    ),
)
NVCT_NOCGROUPS = Rule(
    "GPU-NVCT-NOCGROUPS",
    "error",
    "NVIDIA's toolkit is told not to allow devices (no-cgroups), which only suits rootless engines",
    "no-cgroups = true in the toolkit's config.toml with an engine of root: nodes are mounted, and nobody allows them",
    ("https://github.com/NVIDIA/nvidia-container-toolkit/issues/381",),
)

KUBELET = "/var/lib/kubelet/config.yaml"
#: What runc tells systemd of when a container's limits change.
_LIMIT = re.compile(r"50-(?:CPU\w+|AllowedCPUs|AllowedMemoryNodes|Memory\w+|IO\w+)\.conf")
_APART = 1.0  # seconds; a new scope's files are written within milliseconds


def written_again(denial: Denial) -> Cause | None:
    """systemd's filter was written without GPUs that somebody else had allowed."""
    container = _filtered_container(denial)
    if container is None:
        return None
    scope = scope_of(denial.gate.where)
    if denial.gate.gate == "cgroup-v1":
        settings = None if scope is None else settings_of(denial.subject, scope)
        lost = settings is not None and settings.restricts and lacking(denial.subject, settings, denial.numbered())
        return _lost_to_systemd(denial, container, scope or "") if lost else None
    programs = denial.programs()
    denying = {each.owner.name for each in programs if each.value == "deny"}
    return _lost_to_systemd(denial, container, scope) if denying == {"systemd"} and scope is not None else None


def _filtered_container(denial: Denial) -> Container | None:
    """The container whose own cgroup denies."""
    container = denial.container
    if not denial.by_filter or container is None or container.cgroup is None:
        return None
    below = f"{denial.gate.where}/".startswith(f"{container.cgroup.rstrip('/')}/")
    return container if below else None


def _lost_to_systemd(denial: Denial, container: Container, scope: str) -> Cause:
    nodes = list(denial.numbered())
    given = list(in_view(denial.subject))
    settings = settings_of(denial.subject, scope)
    evidence = list(denial.evidence)
    if settings is not None:
        lacks = ", ".join(lacking(denial.subject, settings, nodes)) or "none of them"
        evidence.append(Evidence(settings.source, f"DevicePolicy={settings.policy}, and DeviceAllow lacks {lacks}"))
    config = config_of(denial.subject)
    fix = (allow_in_scope(scope, given), _repair(container), LASTING)
    if config is not None and known_to_runtime(config[1], nodes):
        links = missing_links(denial.subject, nodes)
        evidence.append(Evidence(config[0], f"linux.resources.devices allows {denial.nodes}"))
        if links and affected(denial.subject):
            return Cause(
                DEVCHAR,
                f"Container {container.short} was started with {denial.nodes}, but {links[0]} does not exist, and this"
                f" runc then leaves the node out of systemd's list for its scope. A daemon-reload applied that list.",
                (*evidence, *runc_evidence(denial.subject), *(Evidence(link, "does not exist") for link in links)),
                (fix[0], *link_fixes(given)),
                "The container lost its GPUs: runc left nodes without a /dev/char link out of systemd's list",
            )
    changed = _updated_limit(denial.subject, scope)
    if changed is not None:
        return Cause(
            CONTAINER_UPDATE_LOSS,
            f"{denial.nodes} in container {container.short} were allowed behind systemd's back. An update of its limits"
            f" (docker update, kubelet's CPU manager) has since made systemd apply its own list for the scope, without"
            f" them: open fails with EPERM in {denial.who}.",
            (*evidence, changed),
            fix,
        )
    return Cause(
        RELOAD_LOSS,
        f"{denial.nodes} in container {container.short} were allowed behind systemd's back. A daemon-reload or a change"
        f" of its scope has since applied systemd's own list, without them: open fails with EPERM in {denial.who}.",
        tuple(evidence),
        fix,
    )


def _repair(container: Container) -> Fix:
    return Fix(
        "Or have gpuiso do that: it tries the nodes from inside, and undoes what does not help",
        f"sudo gpuiso repair --container {quote(container.id)}",
    )


def _updated_limit(subject: Subject, scope: str) -> Evidence | None:
    """A limit of CPU or memory that was set after systemd had made the scope."""
    directory = f"/run/systemd/transient/{scope}"
    try:
        made = subject.host.stat(directory)
        names = subject.host.listdir(f"{directory}.d") or ()
        for name in names:
            if _LIMIT.fullmatch(name) is None or made is None or made.ctime is None:
                continue
            path = f"{directory}.d/{name}"
            node = subject.host.stat(path)
            if node is not None and node.ctime is not None and node.ctime > made.ctime + _APART:
                return Evidence(path, f"written {node.ctime - made.ctime:.0f} s after the scope was made")
    except Unknown:
        return None
    return None


def updated(denial: Denial) -> Cause | None:
    """The runtime's own program denies nodes that were given: only told where something shows that it once did not."""
    container = _filtered_container(denial)
    if container is None:
        return None
    signs = list(_signs_of_update(denial))
    if not signs or _meant(denial):
        return None
    config = config_of(denial.subject)
    if config is not None and known_to_runtime(config[1], denial.numbered()):
        return None
    kubelet = any(sign.source == KUBELET for sign in signs)
    who = "kubelet's static CPU manager" if kubelet else "docker update (or another update of its resources)"
    fix = Fix(
        "Have the device plugin pass the nodes to the runtime: compatWithCPUManager (PASS_DEVICE_SPECS=true), or CDI;"
        " then start the pod again"
        if kubelet
        else "Create the container again with its GPUs requested by CDI (--device nvidia.com/gpu=UUID): an update then"
        " keeps them. Until then, do not update containers that run"
    )
    return Cause(
        CONTAINER_UPDATE_LOSS,
        f"Container {container.short} had {denial.nodes}, and its runtime has since written its device filter again,"
        f" from a list without them, as {who} makes it do: open fails with EPERM in {denial.who}.",
        (*denial.evidence, *signs),
        (fix,),
    )


def _meant(denial: Denial) -> bool:
    """Whether the filter names what it denies: an engine's list of what is allowed never does."""
    if denial.gate.gate == "cgroup-v1":
        return False
    return any(each.value == "deny" and not (each.rule or "deny a").startswith("deny a") for each in denial.programs())


def _signs_of_update(denial: Denial) -> Iterator[Evidence]:
    subject = denial.subject
    held = [path for path in denial.paths if path in subject.holds]
    if held:
        yield Evidence(f"/proc/{subject.pid}/fd", f"holds {', '.join(held)} open from before")
    if "kubepods" in denial.gate.where:
        try:
            if "cpuManagerPolicy: static" in (subject.host.text(KUBELET) or ""):
                yield Evidence(KUBELET, "cpuManagerPolicy: static")
        except Unknown:
            pass  # another sign may be there
    hooked = _mounted_by_hook(denial)
    if hooked and not held:
        try:
            config = toolkit_config(subject.host)
        except Unknown:
            return
        if config is not None and not config.no_cgroups:
            yield Evidence(f"/proc/{subject.pid}/mountinfo", f"{hooked} is bound read-only: NVIDIA's hook put it there")
            yield Evidence(config.path, "no-cgroups is not set: the hook allows what it mounts")


def _mounted_by_hook(denial: Denial) -> str | None:
    """A denied node that libnvidia-container bound into the container: ro, nosuid and noexec."""
    try:
        table = mounts(denial.subject.host, denial.subject.pid)
    except Unknown:
        return None
    for mount in table:
        if mount.point in denial.paths and {"ro", "nosuid", "noexec"} <= mount.options:
            return mount.point
    return None


def never_allowed(denial: Denial) -> Cause | None:
    """The toolkit was told to leave device filters alone, although the engine runs as root."""
    container = denial.container
    if not denial.by_filter or container is None:
        return None
    subject = denial.subject
    config = toolkit_config(subject.host)
    if config is None or not config.no_cgroups:
        return None
    try:
        if in_user_namespace(subject.host, subject.pid):
            return None
    except Unknown:
        pass  # a record without maps: the initial user namespace
    known = config_of(subject)
    if known is not None and known_to_runtime(known[1], denial.numbered()):
        return None
    return Cause(
        NVCT_NOCGROUPS,
        f"{denial.nodes} were put into container {container.short}, but nobody allows them: no-cgroups = true tells"
        " NVIDIA's toolkit to leave the device filter alone, which is right for rootless engines only. This one runs as"
        f" root. Open fails with EPERM in {denial.who}.",
        (Evidence(config.path, "[nvidia-container-cli] no-cgroups = true"), *denial.evidence),
        (
            Fix(
                "Turn it off, then create the container again",
                f"sudo sed -i 's/^[[:space:]]*no-cgroups[[:space:]]*=.*/no-cgroups = false/' {config.path}",
            ),
        ),
    )
