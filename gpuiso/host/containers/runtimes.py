# SPDX-License-Identifier: Apache-2.0
"""The containers that low-level runtimes know, and whose they are; then those their managers know besides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpuiso.host.containers import crio, podman
from gpuiso.host.containers.crun import crun_states
from gpuiso.host.containers.model import Container
from gpuiso.host.containers.place import own_cgroup
from gpuiso.host.containers.runc import runc_states
from gpuiso.host.containers.runtime_state import RuntimeState
from gpuiso.host.containers.state_files import StateFiles, environment, mapping
from gpuiso.host.containers.storage import Storage, Stored

__all__ = ["runtime_containers"]


def runtime_containers(files: StateFiles) -> Iterator[Container]:
    """podman's and CRI-O's containers, and those of runc and crun alone."""
    storage = Storage(files)
    seen = set()
    for state in (*runc_states(files), *crun_states(files)):
        seen.add(state.id)
        yield _of_state(files, storage, state)
    for stored in storage.all():
        if stored.id not in seen:
            yield _of_storage(files, stored)


def _of_state(files: StateFiles, storage: Storage, state: RuntimeState) -> Container:
    bundle = state.bundle if state.bundle is not None and state.bundle.startswith("/") else None
    config = None if bundle is None else files.object(f"{bundle}/config.json")
    pid, cgroups = files.first_process(state.pid, state.id, start=state.start, owner=state.owner)
    container = Container(
        state.id,
        state.runtime,
        runtime=state.runtime,
        pid=pid,
        cgroup=own_cgroup(cgroups, state.id, state.cgroup),
        config=None if config is None else f"{bundle}/config.json",
        env=environment(mapping(config, "process").get("env")),
        owner=state.owner,
    )
    return _managed(container, config, None if bundle is None else storage.of_bundle(bundle, state.id, state.owner))


def _of_storage(files: StateFiles, stored: Stored) -> Container:
    """A container that does not run, or whose runtime keeps its state in a place of its own."""
    pid, cgroups = files.first_process(
        files.number(stored.pid_file), stored.id, written=stored.pid_file, owner=stored.owner
    )
    path, config = None, None
    for bundle in stored.bundles:
        config = config or files.object(f"{bundle}/config.json")
        path = path or (f"{bundle}/config.json" if config is not None else None)
    container = Container(
        stored.id,
        "cri-o" if stored.kubernetes else "podman",
        name=stored.name,
        pid=pid,
        cgroup=own_cgroup(cgroups, stored.id),
        image=stored.image,
        config=path,
        env=environment(mapping(config, "process").get("env")),
        owner=stored.owner,
    )
    return _managed(container, config, stored)


def _managed(container: Container, config: Any, stored: Stored | None) -> Container:
    annotations = mapping(config, "annotations")
    manager = annotations.get("io.container.manager")
    if manager == podman.MANAGER:
        return podman.as_podman(container, stored)
    if manager == crio.MANAGER:
        return crio.as_crio(container, annotations, stored)
    return container
