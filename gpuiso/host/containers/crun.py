# SPDX-License-Identifier: Apache-2.0
"""crun's state: ``ROOT/ID/status`` (libcrun, status.c)."""

from __future__ import annotations

from collections.abc import Iterator

from gpuiso.host.containers.runtime_state import RuntimeState, integer, roots
from gpuiso.host.containers.state_files import StateFiles, text_of

__all__ = ["crun_states"]


def crun_states(files: StateFiles) -> Iterator[RuntimeState]:
    """The containers that were started by crun itself, by podman or by CRI-O."""
    for owner, root in roots(files, "crun"):
        for name in files.names(root):
            if name.startswith("."):
                continue  # .cache holds compiled seccomp filters
            status = files.object(f"{root}/{name}/status")
            if status is not None:
                yield RuntimeState(
                    name,
                    "crun",
                    integer(status.get("pid")),
                    integer(status.get("process-start-time")) or None,  # older releases do not write it
                    text_of(status.get("cgroup-path")),
                    text_of(status.get("bundle")),
                    owner,
                )
