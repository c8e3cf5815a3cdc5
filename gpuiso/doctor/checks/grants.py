# SPDX-License-Identifier: Apache-2.0
"""Processes that use GPUs which no grant of /etc/gpuiso/policy.d gives to whom they belong to.

``gpuiso run`` and the hook hold grants where they are asked; a shell, another container engine or a batch system asks
neither of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from gpuiso.doctor.checks.access_words import target_of
from gpuiso.doctor.finding import Evidence, Finding, Fix, Rule
from gpuiso.doctor.held_share import held_share
from gpuiso.doctor.machine import Machine, Subject
from gpuiso.doctor.registry import machine_check, process_check
from gpuiso.errors import NotFound, Unknown
from gpuiso.grants.bearer import Bearer
from gpuiso.grants.decide import applying
from gpuiso.grants.document import DIRECTORY, Grant
from gpuiso.grants.spec import matching
from gpuiso.grants.units import Unit
from gpuiso.host.containers import Container

__all__: list[str] = []

OUTSIDE = Rule(
    "GPU-GRANT-OUTSIDE",
    "warning",
    "A process uses a GPU that no grant gives it",
    f"the files of {DIRECTORY} do not give its user, slice or container the GPU, not so many, or not without a gpu.max",
    ("https://github.com/opencontainers/runtime-spec/blob/main/config.md#annotations",),
)
FILE = Rule(
    "GPU-GRANT-FILE",
    "error",
    "A file that says who may have which GPUs is wrong",
    f"a file of {DIRECTORY} cannot be understood: gpuiso run starts nothing, and after a boot the hook grants nothing",
    ("https://yaml.org/spec/1.2.2/",),
)


@machine_check(FILE)
def wrong_file(machine: Machine) -> Iterator[Finding]:
    """One finding: whoever reads the files stops at the first that is wrong."""
    fault = machine.grants_fault
    if fault is None:
        return
    file = fault.file or DIRECTORY
    yield FILE.finding(
        f"Who may have which GPUs cannot be known, so gpuiso run starts nothing: {fault.message}.",
        evidence=[Evidence(file, fault.message)],
        fix=[Fix(fault.hint or "Put it right, and compile it for the hook", f"gpuiso rules check {file}")],
    )


@process_check(OUTSIDE)
def outside_of_grants(subject: Subject) -> Iterator[Finding]:
    """What the process uses is in no grant, or all that its owner uses is more than any grant allows."""
    grants = subject.machine.grants
    used = subject.machine.uses.of(subject.pid, subject.holds) if grants is not None else ()
    if grants is None or not used:
        return
    bearer = _bearer(subject, grants)
    found = applying(grants, bearer)
    if found is None:
        return
    units = subject.machine.units
    all_used = _used_by(subject, bearer)
    reasons = [(grant, why) for grant in found if (why := _refuses(grant, units, used, all_used)) is not None]
    if len(reasons) < len(found):
        given = [grant for grant in found if grant not in (refusing for refusing, _ in reasons)]
        reasons += _without_limit(subject, given, used, bearer.cgroup)
    if len(reasons) < len(found):
        return
    names = ", ".join(map(str, used))
    yield OUTSIDE.finding(
        f"The {_whose(bearer)} uses {names} with {subject.comm} (pid {subject.pid}), and"
        f" {'no grant is for it' if not found else 'no grant gives that'}.",
        evidence=[
            *(Evidence(f"/proc/{subject.pid}/fd", f"{path} is open") for path in sorted(subject.holds)),
            *(Evidence(str(grant.place), why) for grant, why in reasons),
            *([] if found else [Evidence(DIRECTORY, f"no grant is for the {_whose(bearer)}")]),
        ],
        fix=[
            Fix("Take the GPU back; the process lives on, without it", f"gpuiso reclaim --pid {subject.pid}"),
            Fix(f"Or add a grant in {DIRECTORY}"),
        ],
        target=target_of(subject, None),
    )


def _bearer(subject: Subject, grants: Sequence[Grant]) -> Bearer:
    """To whom a process belongs: the container it is in, unless that is a user's own, or the user."""
    cgroup = subject.places[0] if subject.places else "/"
    container = subject.container
    if container is not None and container.owner is None:
        asked = any(grant.containers for grant in grants)
        annotations = _annotations(subject, container) if asked else {}
        return Bearer(0, container.short, cgroup=cgroup, annotations=annotations)
    status, accounts = subject.status, subject.machine.accounts
    uid = status.uid if container is None or container.owner is None else container.owner
    named = any(grant.users or grant.groups for grant in grants)
    groups = frozenset(map(accounts.group, {status.gid, *status.groups})) if named else frozenset()
    return Bearer(uid, accounts.user(uid) if named else str(uid), groups, cgroup)


def _annotations(subject: Subject, container: Container) -> dict[str, str]:
    text = None if container.config is None else subject.machine.host.text(container.config)
    if text is None:
        raise Unknown(f"annotations of container {container.short}", "its config.json is not there")
    try:
        found = json.loads(text).get("annotations") or {}
        return {str(name): value for name, value in found.items() if isinstance(value, str)}
    except (ValueError, AttributeError, RecursionError) as error:
        raise Unknown(str(container.config), "not an OCI configuration") from error


def _used_by(subject: Subject, bearer: Bearer) -> frozenset[str]:
    """All units that the same user, or the same container, uses."""
    machine = subject.machine
    found: set[str] = set()
    for pid, held in machine.held.items():
        other = Subject(machine, pid, asked=False)
        try:
            if bearer.annotations is not None:
                same = other.container is not None and other.container == subject.container
            else:
                same = other.container is None and other.status.uid == bearer.uid
        except (NotFound, Unknown):
            continue  # it ended, or belongs to somebody else
        if same:
            found |= {unit.id for unit in machine.uses.of(pid, held)}
    return frozenset(found)


def _refuses(grant: Grant, units: Sequence[Unit], used: Sequence[Unit], all_used: frozenset[str]) -> str | None:
    """Why a grant does not give what is used."""
    if grant.gpus is not None:
        given = {unit.id for item in grant.gpus for unit in matching(item, units)}
        if any(unit.id not in given for unit in used):
            return f"only the GPUs {', '.join(grant.gpus)}"
    if grant.most is not None and len(all_used) > grant.most:
        return f"at most {grant.most}, and {len(all_used)} are in use"
    return None


def _without_limit(
    subject: Subject, grants: Sequence[Grant], used: Sequence[Unit], cgroup: str
) -> list[tuple[Grant, str]]:
    """The grants that give the GPUs with a gpu.max which nobody holds; none if one grant gives them without."""
    limits = [grant.gpu_max for grant in grants if grant.gpu_max is not None and grant.gpu_max.quota is not None]
    if len(limits) < len(grants) or any(unit.vendor != "nvidia" for unit in used):
        return []
    held = held_share(subject.machine.host, cgroup)
    if held is not None and any(held.share <= limit.share for limit in limits):
        return []
    now = "none is held" if held is None else f"{held} is held"
    return [(grant, f"gpu.max at most {grant.gpu_max}, and {now}") for grant in grants]


def _whose(bearer: Bearer) -> str:
    return f"{'user' if bearer.annotations is None else 'container'} {bearer.name}"
