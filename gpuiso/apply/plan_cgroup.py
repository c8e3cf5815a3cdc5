# SPDX-License-Identifier: Apache-2.0
"""The plan for a cgroup that is ours to change.

The order is: directories and controllers from the top down, the device program, memory of devices, other limits,
tasks last. So no task ever runs in the cgroup before its rules hold, and no limit is asked of a controller that is
not there.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from gpuiso.apply.attachable import check_attachable
from gpuiso.apply.calls import Calls
from gpuiso.apply.plan import Plan, policy_as_json
from gpuiso.apply.steps import AttachProgram, EnableControllers, MakeCgroup, Step, V1Devices, WriteLimit
from gpuiso.apply.target import Place, Target, levels
from gpuiso.apply.verify import Verification
from gpuiso.devfilter.insn import pack
from gpuiso.devfilter.program import to_program
from gpuiso.errors import NotPermitted, NotSupported
from gpuiso.policy.resolve import ResolvedPolicy
from gpuiso.policy.v1 import v1_state

__all__ = ["controllers_of", "plan_cgroup"]

_CORE = "cgroup."
_THREADED = frozenset({"cpu", "cpuset", "perf_event", "pids"})
"""Controllers that a threaded cgroup may have (Documentation/admin-guide/cgroup-v2.rst)."""


def controllers_of(wanted: ResolvedPolicy) -> list[str]:
    """The controllers that the files of a policy need, in their order."""
    return list(dict.fromkeys(name.split(".")[0] for name in wanted.files if not name.startswith(_CORE)))


def plan_cgroup(
    calls: Calls, target: Target, wanted: ResolvedPolicy, *, file: str | None = None, narrower: bool = False
) -> Plan:
    """:raises NotSupported: what the policy asks for does not exist here, or cannot be in this cgroup.

    :raises NotPermitted: a privilege is missing, named. Nothing is changed in any case.
    """
    notes: list[str] = []
    steps: list[Step] = []
    if wanted.files and target.v2 is None:
        raise NotSupported(
            f"{target.name} is in the cgroup v1 hierarchy alone, where {', '.join(wanted.files)} cannot be written",
            hint="name a cgroup of the v2 tree",
        )
    if target.v2 is not None:
        _check_type(calls, target.v2, wanted)
        steps += _tree(calls, target, target.v2, controllers_of(wanted))
    verification = None
    if wanted.restricts_devices:
        if target.v2 is not None:
            check_attachable(calls, target.v2)
            steps.append(_program(target.v2, wanted))
        if target.v1 is not None:
            steps += _v1(target, target.v1, wanted, notes)
        verification = Verification(target.v2, target.v1, tuple(wanted.rules), wanted.default_allow, narrower)
    if target.v2 is not None:
        _check_writable(calls, target.v2, wanted)
        place = target.v2
        ordered = sorted(wanted.files, key=_rank)
        steps += [WriteLimit(place.mount, place.cgroup, name, tuple(wanted.files[name])) for name in ordered]
    return Plan(target, tuple(steps), verification, policy_as_json(wanted, file=file), tuple(notes))


def _v1(target: Target, place: Place, wanted: ResolvedPolicy, notes: list[str]) -> Iterator[Step]:
    """Beside a v2 program the controller of v1 may stay as it is, if it cannot say the same."""
    try:
        state = v1_state(wanted.rules, default_allow=wanted.default_allow)
    except NotSupported as error:
        if target.v2 is None:
            raise
        notes.append(f"cgroup v1 stays as it is, the program holds the rules: {error.message}")
        return
    if not place.exists:
        for path in list(levels(place.cgroup))[1:]:
            yield MakeCgroup(place.mount, path)
    yield V1Devices.of(place.mount, place.cgroup, state)


def _rank(name: str) -> tuple[int, ...]:
    """Device memory, then memory, then the rest; of one controller, guarantees before limits."""
    controller = name.split(".")[0]
    return ({"dmem": 0, "memory": 1}.get(controller, 2), 0 if name.endswith((".min", ".low")) else 1)


def _program(place: Place, wanted: ResolvedPolicy) -> AttachProgram:
    return AttachProgram(place.mount, place.cgroup, pack(to_program(wanted)).hex(), len(wanted.rules))


def _tree(calls: Calls, target: Target, place: Place, controllers: list[str]) -> Iterator[Step]:
    """Make what is missing of the path, and enable controllers on the way down."""
    paths = list(levels(place.cgroup))
    _check_available(calls, place.mount, controllers)
    for above, path in pairwise(paths):
        exists, enabled = _look(calls, place.mount, above)
        missing = [name for name in controllers if name not in enabled]
        if missing:
            _check_delegated(target, above, missing)
            yield EnableControllers(place.mount, above, tuple(missing), path)
        if not exists or not _look(calls, place.mount, path)[0]:
            yield MakeCgroup(place.mount, path)


def _look(calls: Calls, mount: str, path: str) -> tuple[bool, list[str]]:
    """Whether a cgroup exists, and the controllers that its children have."""
    try:
        with calls.cgroup(mount, path) as directory:
            return True, calls.read(directory, "cgroup.subtree_control").split()
    except FileNotFoundError:
        return False, []


def _check_available(calls: Calls, mount: str, controllers: list[str]) -> None:
    with calls.cgroup(mount, "/") as directory:
        available = calls.read(directory, "cgroup.controllers").split()
    if missing := [name for name in controllers if name not in available]:
        raise NotSupported(
            f"the cgroup tree at {mount} has no {', '.join(missing)} controller, only {' '.join(available) or 'none'}",
            hint="on a hybrid host a controller that cgroup v1 uses is not there for v2; "
            "cgroup_no_v1=all on the kernel's command line frees it",
        )


def _check_delegated(target: Target, above: str, missing: list[str]) -> None:
    """Above the cgroup of the unit that delegates, everything is systemd's."""
    if target.delegated is None:
        return
    unit, home = target.delegated
    if above != home and not above.startswith(home.rstrip("/") + "/"):
        raise NotSupported(
            f"{unit} does not have the {', '.join(missing)} controller to delegate",
            hint=f"add Delegate={' '.join(missing)} to {unit} (systemctl edit {unit}) and restart it",
        )


def _check_type(calls: Calls, place: Place, wanted: ResolvedPolicy) -> None:
    try:
        with calls.cgroup(place.mount, place.cgroup) as directory:
            kind = calls.read(directory, "cgroup.type").strip()
    except FileNotFoundError:
        return
    if kind == "domain invalid":
        raise NotSupported(
            f"{place.directory} is below a threaded cgroup (its type is domain invalid): no process can be in it"
        )
    domain = [name for name in controllers_of(wanted) if name not in _THREADED]
    if kind == "threaded" and domain:
        files = [name for name in wanted.files if name.split(".")[0] in domain]
        raise NotSupported(
            f"{place.directory} is threaded: {', '.join(files)} cannot be set there",
            hint="limits of memory, io and devices belong to the nearest cgroup above whose type is domain threaded",
        )


def _check_writable(calls: Calls, place: Place, wanted: ResolvedPolicy) -> None:
    try:
        with calls.cgroup(place.mount, place.cgroup) as directory:
            for name in wanted.files:
                if not calls.writable(directory, name):
                    raise NotPermitted(f"{place.directory}/{name} may not be written to", hint="run it as root")
    except FileNotFoundError:
        return
