# SPDX-License-Identifier: Apache-2.0
"""createRuntime: what the container may use, held by its cgroup before anything of it runs.

The grants of policy.d come before all that is asked for: what they do not give is taken away, and a container to which
its runtime gives it does not start.

Who may ask for what: the command line of a hook stands in a file of the administrator's, so its policy replaces the
runtime's rules and may allow more than they do. Annotations come from whoever starts the container, so what they name
is attached beside the runtime's rules and can only take away. The container's environment is not looked at.
"""

from __future__ import annotations

import os

from gpuiso.hook.arguments import RuntimeWork
from gpuiso.hook.errors import HookError
from gpuiso.hook.state import State, allowed_access, read_config
from gpuiso.hook.undo import Undo

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuiso.hook.cgroup import ContainerCgroup
    from gpuiso.hook.tables import GpuTable

__all__ = ["ANNOTATIONS", "GRANTS_FILE", "apply_policy"]

POLICY, GPUS, GPU_MAX = "gpuiso.policy", "gpuiso.gpus", "gpuiso.gpu.max"
ANNOTATIONS = (POLICY, GPUS, GPU_MAX)
GRANTS_FILE = "/run/gpuiso/hook/grants.json"
"""There only while grants limit containers: whoever asks for nothing pays for two looks."""
TABLE_FILE = "/run/gpuiso/hook/gpus.json"
SOURCES = "/etc/gpuiso/policy.d"


def apply_policy(state: State, work: RuntimeWork, undo: Undo) -> None:
    """All that the grants, the command line and the annotations come to.

    :raises HookError: with ``undo`` knowing what was done.
    """
    unknown = sorted(set(state.annotations) - set(ANNOTATIONS))
    if unknown:
        raise HookError(f"unknown annotation {unknown[0]}; gpuiso knows {', '.join(ANNOTATIONS)}")
    asked = state.annotations
    told = bool(asked) or work.policy is not None or work.gpus is not None or work.gpu_max is not None
    limited = os.access(GRANTS_FILE, os.F_OK)
    if not limited:
        _refuse_uncompiled(state)
    if not told and (not limited or _beyond_grants(state)):
        return
    from gpuiso.hook.cgroup import find_cgroup, require_root
    from gpuiso.hook.tables import gpu_table, hook_policy

    require_root()
    # Everything is looked up and read before anything is changed.
    own = None if work.policy is None else hook_policy(work.policy)
    named = hook_policy(asked[POLICY]) if POLICY in asked else None
    selections = [text for text in (work.gpus, asked.get(GPUS)) if text is not None]
    table = gpu_table() if selections or limited else None
    chosen = [table.select(text) for text in selections] if table is not None else []
    programs = [table.program(ids) for ids in chosen] if table is not None else []
    config = read_config(state.bundle) if table is not None else {}
    if named is not None and named.program is not None:
        programs.append(named.program)
    shares = [work.gpu_max, asked.get(GPU_MAX), *(one.gpu_max for one in (own, named) if one is not None)]

    cgroup = find_cgroup(state.pid)
    if table is not None and limited:
        ids, most = _granted(state, cgroup.path, config, table, chosen)
        chosen = [*chosen, ids]
        programs.append(table.program(ids))
        shares.append(most)
    share = _share(shares)
    if own is not None and own.program is not None:
        _replace(cgroup, own.program, own.systemd, undo)
    for program in programs:
        cgroup.restrict(program, undo)
    if table is not None and own is None:
        left = [device for device in table.nodes(chosen[0]) if all(device in table.nodes(ids) for ids in chosen)]
        _keep_allowed(cgroup, left, config, undo)
    if share is not None:
        from gpuiso.hook.governed import register

        register(state.id, cgroup.path, share, undo)


def _refuse_uncompiled(state: State) -> None:
    """:raises HookError: it asks for a GPU, and what the grants come to is not known since the host started."""
    if not os.path.lexists(SOURCES) or os.access(TABLE_FILE, os.F_OK):
        return
    from gpuiso.hook.cgroup import is_root
    from gpuiso.hook.grants import asks_for_gpus, uncompiled

    if is_root() and uncompiled(SOURCES, TABLE_FILE) and asks_for_gpus(read_config(state.bundle)):
        raise HookError(f"it asks for a GPU, and the grants of {SOURCES} are not compiled; run gpuiso hook refresh")


def _beyond_grants(state: State) -> bool:
    """Whether nothing can be held, and nothing has to be: who is given no GPU by the runtime starts all the same.

    A user's own engine starts no hook that the user does not want, and cannot see what root compiled; the doctor looks
    at what he has.
    """
    from gpuiso.hook.cgroup import decided_by_v1, is_root
    from gpuiso.hook.grants import asks_for_gpus, hook_grants
    from gpuiso.hook.tables import gpu_table

    if not is_root():
        return True
    try:
        gpu_table()
        hook_grants(GRANTS_FILE)
        held = not decided_by_v1()
    except HookError:
        held = False
    return not held and not asks_for_gpus(read_config(state.bundle))


def _granted(
    state: State, cgroup: str, config: dict[str, object], table: GpuTable, chosen: list[list[str]]
) -> tuple[list[str], str | None]:
    """The GPUs that the grants leave, and the gpu.max that goes with them."""
    from gpuiso.hook.grants import hook_grants

    grants = hook_grants(GRANTS_FILE)
    if grants is None:
        return sorted(table.gpus), None  # they were taken away just now
    left = [one for one in table.gpus if all(one in ids for ids in chosen)] if chosen else None
    return grants.decide(state, cgroup, config, table, left)


def _replace(
    cgroup: ContainerCgroup, program: bytes, systemd: tuple[str, list[tuple[str, str]]] | None, undo: Undo
) -> None:
    """Put a policy in the place of the runtime's rules: in the unit, if the cgroup is one's, and in the cgroup.

    What systemd cannot say (a denial within what is allowed) is left to our program alone, and the unit lets all pass:
    a program is never detached by systemd, whatever it applies anew beside it.
    """
    from gpuiso.hook.unit import set_devices, unit_of

    before = cgroup.programs()
    unit = unit_of(cgroup.path)
    if unit is not None:
        set_devices(unit, ("auto", []) if systemd is None else systemd, undo)
    cgroup.replace(program, before, undo)


def _keep_allowed(
    cgroup: ContainerCgroup, devices: list[tuple[int, int | None]], config: dict[str, object], undo: Undo
) -> None:
    """Tell the unit of the GPUs that the runtime allows.

    Runtimes leave out what they find no node of in /dev/char (runc before 1.1.7), or tell systemd nothing at all;
    then the next daemon-reload, or change of the unit, takes the GPU from the running container.
    """
    from gpuiso.hook.unit import add_devices, unit_of

    unit = unit_of(cgroup.path)
    pairs = [
        (f"/dev/char/{major}:{minor}", access)
        for major, minor in devices
        if minor is not None and (access := allowed_access(config, major, minor))
    ]
    if unit is not None and pairs:
        add_devices(unit, pairs, undo)


def _share(texts: list[str | None]) -> str | None:
    """The smallest of the shares that are asked for."""
    wanted = [text for text in texts if text is not None]
    if not wanted:
        return None
    from gpuiso.hook.governed import smallest_share

    return smallest_share(wanted)
