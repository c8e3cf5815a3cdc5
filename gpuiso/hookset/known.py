# SPDX-License-Identifier: Apache-2.0
"""What the tables that the hook reads hold, asked as the hook asks."""

from __future__ import annotations

import os
from dataclasses import dataclass

from gpuiso.hook.cgroup import decided_by_v1
from gpuiso.hook.errors import HookError, reason
from gpuiso.hook.grants import hook_grants, uncompiled
from gpuiso.hook.runtime import GRANTS_FILE
from gpuiso.hook.tables import DIRECTORY, gpu_table, hook_policy

__all__ = ["Known", "known"]


@dataclass(frozen=True)
class Known:
    """``gpus`` is None where there is no table that the hook would use; ``problems`` says why.

    ``grants`` is the number of grants that containers are held to, None where none limits them.
    """

    gpus: tuple[str, ...] | None
    policies: tuple[str, ...]
    grants: int | None
    problems: tuple[str, ...]


def known(directory: str = DIRECTORY, sources: str | None = None) -> Known:
    """The names of GPUs and policies in ``directory``.

    ``sources`` is the directory that they were compiled from: what changed there since is a problem.
    """
    gpus: tuple[str, ...] | None = None
    policies = []
    problems = []
    try:
        gpus = tuple(gpu_table(directory).names)
    except (HookError, OSError) as error:
        problems.append(reason(error))
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        names = []
    for name in names:
        if name.startswith("policy-") and name.endswith(".json"):
            policy = name.removeprefix("policy-").removesuffix(".json")
            try:
                hook_policy(policy, directory)
                policies.append(policy)
            except (HookError, OSError) as error:
                problems.append(reason(error))
    try:
        grants = hook_grants(f"{directory}/{os.path.basename(GRANTS_FILE)}")
    except (HookError, OSError) as error:
        grants = None
        problems.append(reason(error))
    if grants is not None and grants.error is not None:
        problems.append(f"no container is granted a GPU: {grants.error}")
    if grants is not None and decided_by_v1():
        problems.append(
            "cgroup v1 decides about devices on this host, so grants cannot be held: containers that ask for a GPU do"
            " not start"
        )
    if sources is not None and uncompiled(sources, f"{directory}/gpus.json"):
        problems.append(
            f"{sources} is not compiled: where the hook is called, containers that ask for a GPU do not start"
        )
    if gpus is not None and sources is not None and _changed(sources) > os.stat(f"{directory}/gpus.json").st_mtime:
        problems.append(f"{sources} has changed since it was compiled; run gpuiso hook refresh")
    return Known(gpus, tuple(policies), None if grants is None else len(grants.grants), tuple(problems))


def _changed(directory: str) -> float:
    """When something in a directory changed last; 0 where there is none."""
    try:
        times = [os.stat(directory).st_mtime]
        times += [entry.stat().st_mtime for entry in os.scandir(directory)]
    except OSError:
        return 0.0
    return max(times)
