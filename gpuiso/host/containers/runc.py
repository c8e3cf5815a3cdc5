# SPDX-License-Identifier: Apache-2.0
"""runc's state: ``ROOT/ID/state.json`` (libcontainer, ``State`` in container.go)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from gpuiso.host.containers.runtime_state import RuntimeState, integer, roots
from gpuiso.host.containers.state_files import StateFiles, mapping, text_of

__all__ = ["runc_states"]


def runc_states(files: StateFiles) -> Iterator[RuntimeState]:
    """The containers that were started by runc itself, by podman or by CRI-O.

    Docker and containerd have runc keep its state elsewhere; their containers are found by their own state.
    """
    for owner, root in roots(files, "runc"):
        for name in files.names(root):
            state = files.object(f"{root}/{name}/state.json")
            if state is not None:
                yield RuntimeState(
                    name,
                    "runc",
                    integer(state.get("init_process_pid")),
                    integer(state.get("init_process_start")),
                    _cgroup(mapping(state, "cgroup_paths")),
                    _bundle(mapping(state, "config").get("labels")),
                    owner,
                )


def _cgroup(paths: Mapping[str, Any]) -> str | None:
    """The v2 path stands under the empty name, v1 paths under their controllers; all with the mount point."""
    path = text_of(paths.get("")) or text_of(paths.get("devices"))
    if path is None:
        return None
    mount = re.match(r"/sys/fs/cgroup(?:/unified|/devices)?(?=/)", path)
    return path[mount.end() :] if mount is not None else path


def _bundle(labels: Any) -> str | None:
    for label in labels if isinstance(labels, list) else ():
        if isinstance(label, str) and label.startswith("bundle="):
            return label.removeprefix("bundle=") or None
    return None
