# SPDX-License-Identifier: Apache-2.0
"""Which cgroups have a gpu.max that the governor is to hold: one small file each below /run/gpuiso/govern."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile

from gpuiso.errors import BadInput
from gpuiso.policy.limits import GpuMax, parse_gpu_max

__all__ = ["REGISTRY", "entry_content", "entry_path", "register", "registered", "unregister"]

REGISTRY = "/run/gpuiso/govern"
_MAX_FILE = 1 << 16


def entry_path(cgroup: str, directory: str = REGISTRY) -> str:
    """The file that stands for a cgroup."""
    return f"{directory}/{hashlib.sha256(cgroup.encode()).hexdigest()[:32]}.json"


def entry_content(cgroup: str, share: GpuMax) -> str:
    """What is in it."""
    return json.dumps({"cgroup": cgroup, "gpu.max": str(share)})


def register(cgroup: str, share: GpuMax, directory: str = REGISTRY) -> None:
    """Remembers ``share`` for ``cgroup``; a governor that follows the registry takes it up within a second."""
    os.makedirs(directory, mode=0o755, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=directory, prefix=".new-")
    with os.fdopen(handle, "w") as file:
        file.write(entry_content(cgroup, share))
    os.replace(name, entry_path(cgroup, directory))


def unregister(cgroup: str, directory: str = REGISTRY) -> bool:
    """Forgets a cgroup; whether it was known."""
    try:
        os.unlink(entry_path(cgroup, directory))
    except FileNotFoundError:
        return False
    return True


def registered(directory: str = REGISTRY) -> dict[str, GpuMax]:
    """All of them. A file that somebody damaged is left out, not obeyed.

    :raises BadInput: a file of ours holds what is no gpu.max.
    """
    found: dict[str, GpuMax] = {}
    try:
        names = sorted(os.listdir(directory))
    except FileNotFoundError:
        return found
    for name in names:
        if not name.endswith(".json") or name.startswith("."):
            continue
        path = f"{directory}/{name}"
        try:
            with open(path) as file:
                entry = json.loads(file.read(_MAX_FILE))
            found[str(entry["cgroup"])] = parse_gpu_max(str(entry["gpu.max"]))
        except FileNotFoundError:
            continue  # unregistered meanwhile
        except (ValueError, TypeError, KeyError) as error:
            raise BadInput(f"not an entry of the governor's registry: {error}", file=path) from error
    return found
