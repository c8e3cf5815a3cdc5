# SPDX-License-Identifier: Apache-2.0
"""Containers that work now and lose their GPUs at the next daemon-reload: systemd does not know of the nodes."""

from __future__ import annotations

from collections.abc import Iterator

from gpuiso.doctor.checks.access_words import target_of
from gpuiso.doctor.checks.gpu_users import families, uses
from gpuiso.doctor.checks.scope_devices import (
    DEVCHAR,
    LASTING,
    NOTICE,
    affected,
    allow_in_scope,
    bears,
    config_of,
    in_view,
    known_to_runtime,
    lacking,
    link_fixes,
    missing_links,
    runc_evidence,
    scope_of,
)
from gpuiso.doctor.finding import Evidence, Finding, Fix, Rule
from gpuiso.doctor.machine import Subject
from gpuiso.doctor.registry import process_check
from gpuiso.doctor.unit_settings import UnitSettings, unit_settings
from gpuiso.host.containers import container_in_path
from gpuiso.host.process import unified_cgroup
from gpuiso.host.protocol import Node

__all__: list[str] = []

RELOAD_RISK = Rule(
    "GPU-SYSTEMD-RELOAD-RISK",
    "warning",
    "The container's GPUs will be lost at the next daemon-reload",
    "a container can open GPUs that systemd's device list of its scope does not have: a reload or update takes them",
    (
        NOTICE,
        "https://github.com/NVIDIA/nvidia-container-toolkit/issues/1227",
        "https://github.com/dstackai/dstack/issues/2601",
    ),
)


@process_check(RELOAD_RISK, DEVCHAR)
def soon_lost(subject: Subject) -> Iterator[Finding]:
    """A container that can open GPUs now, of which systemd's list for its scope does not know."""
    if not subject.machine.nvidia or not subject.host.systemd:
        return
    cgroup = unified_cgroup(subject.host, subject.pid)
    if cgroup is None:
        return
    place = container_in_path(cgroup)
    scope = None if place is None else scope_of(place.path)
    family = next(family for family in families(subject.machine) if family.vendor == "nvidia")
    if scope is None or not uses(subject, family, in_view=True):
        return
    nodes = [(path, node) for path, node in in_view(subject) if subject.access(path).verdict == "allow"]
    settings = unit_settings(subject.host, scope) if nodes else None
    if settings is None or not settings.restricts:
        return
    unknown = lacking(subject, settings, nodes)
    needed = {node.path for node in (*family.gpus, *family.control)}
    if needed & set(unknown) and bears(subject, cgroup):
        yield _risk(subject, scope, settings, [(path, node) for path, node in nodes if path in unknown])


def _risk(subject: Subject, scope: str, settings: UnitSettings, nodes: list[tuple[str, Node]]) -> Finding:
    names = ", ".join(path for path, _ in nodes)
    evidence = [
        Evidence(settings.source, f"DevicePolicy={settings.policy}, and DeviceAllow lacks {names}"),
        Evidence(f"/proc/{subject.pid}/cgroup", scope),
        *(Evidence(f"/proc/{subject.pid}/root{path}", "may be opened now") for path, _ in nodes),
    ]
    config = config_of(subject)
    text = "Tell systemd of the nodes, for the running container"
    allow = Fix(text, allow_in_scope(scope, nodes).command)
    target = target_of(subject, None)
    name = scope if subject.container is None else subject.container.short
    if config is not None and known_to_runtime(config[1], nodes):
        links = missing_links(subject, nodes)
        if links and affected(subject):
            return DEVCHAR.finding(
                f"Container {name} can open {names}, but {links[0]} does not exist, and this runc then leaves"
                f" the node out of systemd's list for its scope: the next daemon-reload or update takes the GPUs away.",
                severity="warning",
                title="The container's GPUs will be lost: nodes have no links in /dev/char",
                evidence=[
                    *evidence,
                    Evidence(config[0], f"linux.resources.devices allows {names}"),
                    *runc_evidence(subject),
                    *(Evidence(link, "does not exist") for link in links),
                ],
                fix=[allow, *link_fixes(nodes)],
                target=target,
            )
    if config is not None:
        evidence.append(Evidence(config[0], f"linux.resources.devices does not allow {names}"))
    return RELOAD_RISK.finding(
        f"Container {name} can open {names}, but systemd's list for its scope does not have them: they were"
        " allowed behind its back. The next systemctl daemon-reload, docker update or change of the scope takes them"
        " away.",
        evidence=evidence,
        fix=[allow, LASTING],
        target=target,
    )
