# SPDX-License-Identifier: Apache-2.0
"""Docker's containers: from the daemon, or where it does not answer, from what it keeps on disk.

``DATA-ROOT/containers/ID/config.v2.json`` and ``hostconfig.json`` are the daemon's own (moby, daemon/container).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpuiso.errors import Unknown
from gpuiso.host.containers.model import Container
from gpuiso.host.containers.place import own_cgroup
from gpuiso.host.containers.runtime_state import integer
from gpuiso.host.containers.state_files import StateFiles, environment, mapping, text_of

__all__ = ["docker_containers"]

DATA_ROOT = "/var/lib/docker"
CONFIG = "/etc/docker/daemon.json"


def docker_containers(files: StateFiles) -> Iterator[Container]:
    """Every container of the daemon, running or not."""
    try:
        inspected = files.host.docker_containers()
    except Unknown as error:
        files.missing[error.what] = error.why
        inspected = {}
    for identity, inspect in inspected.items():
        state = mapping(inspect, "State")
        yield _container(files, identity, inspect, state, mapping(inspect, "HostConfig"), None)
    if not inspected:
        yield from _on_disk(files)


def _on_disk(files: StateFiles) -> Iterator[Container]:
    base = f"{_data_root(files)}/containers"
    for identity in files.names(base):
        path = f"{base}/{identity}/config.v2.json"
        config = files.object(path)
        if config is not None:
            host_config = files.object(f"{base}/{identity}/hostconfig.json")
            yield _container(files, identity, config, mapping(config, "State"), mapping(host_config), path)


def _data_root(files: StateFiles) -> str:
    return text_of(mapping(files.object(CONFIG)).get("data-root")) or DATA_ROOT


def _container(
    files: StateFiles,
    identity: str,
    described: Mapping[str, Any],
    state: Mapping[str, Any],
    host_config: Mapping[str, Any],
    written: str | None,
) -> Container:
    config = mapping(described, "Config")
    pid = integer(state.get("Pid")) if state.get("Running") is True else None
    pid, cgroups = files.first_process(pid, identity, written=written)
    return Container(
        identity,
        "docker",
        name=(text_of(described.get("Name")) or "").removeprefix("/") or None,
        runtime=text_of(host_config.get("Runtime")),
        pid=pid,
        cgroup=own_cgroup(cgroups, identity),
        image=text_of(config.get("Image")),
        env=environment(config.get("Env")),
    )
