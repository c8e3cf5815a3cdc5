# SPDX-License-Identifier: Apache-2.0
"""containerd's running tasks, whoever had them made: Kubernetes, k3s, nerdctl, ctr, or Docker.

Each has the directory ``STATE/io.containerd.runtime.v2.task/NAMESPACE/ID``, a bundle with config.json in which the
shim also leaves init.pid and options.json (containerd, core/runtime/v2/bundle.go).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpuiso.host.containers.kubernetes import is_sandbox, pod_name
from gpuiso.host.containers.model import Container
from gpuiso.host.containers.place import own_cgroup
from gpuiso.host.containers.state_files import StateFiles, environment, mapping, text_of

__all__ = ["DOCKER_NAMESPACE", "containerd_tasks"]

#: State directories: containerd's own, that of the containerd which Docker starts itself, and those of distributions.
STATES = (
    "/run/containerd",
    "/run/docker/containerd/daemon",
    "/run/k3s/containerd",
    "/run/k0s/containerd",
    "/var/snap/microk8s/common/run/containerd",
)
USER_STATES = ("containerd", "docker/containerd/daemon")
DOCKER_NAMESPACE = "moby"
_TASKS = "io.containerd.runtime.v2.task"


def containerd_tasks(files: StateFiles) -> Iterator[Container]:
    """A container for each task."""
    states: list[tuple[int | None, str]] = [(None, state) for state in STATES]
    for uid, directory in files.user_directories():
        states += [(uid or None, f"{directory}/{state}") for state in USER_STATES]
    for owner, state in states:
        for namespace in files.names(f"{state}/{_TASKS}"):
            for identity in files.names(f"{state}/{_TASKS}/{namespace}"):
                yield _task(files, f"{state}/{_TASKS}/{namespace}/{identity}", namespace, identity, owner)


def _task(files: StateFiles, bundle: str, namespace: str, identity: str, owner: int | None) -> Container:
    pid_file = f"{bundle}/init.pid"
    pid, cgroups = files.first_process(files.number(pid_file), identity, written=pid_file, owner=owner)
    config = files.object(f"{bundle}/config.json")
    annotations = mapping(config, "annotations")
    return Container(
        identity,
        "docker" if namespace == DOCKER_NAMESPACE else "containerd",
        name=pod_name(annotations) or text_of(annotations.get("nerdctl/name")),
        runtime=_runtime(files, bundle),
        pid=pid,
        cgroup=own_cgroup(cgroups, identity, _declared(config)),
        image=text_of(annotations.get("io.kubernetes.cri.image-name")),
        config=None if config is None else f"{bundle}/config.json",
        env=environment(mapping(config, "process").get("env")),
        namespace=None if namespace == DOCKER_NAMESPACE else namespace,
        owner=owner,
        sandbox=is_sandbox(annotations),
    )


def _runtime(files: StateFiles, bundle: str) -> str | None:
    """The binary that the shim runs: of its options, else of what the shim wrote down."""
    options = files.object(f"{bundle}/options.json")
    return text_of(mapping(options).get("binary_name")) or text_of((files.text(f"{bundle}/runtime") or "").strip())


def _declared(config: Mapping[str, Any] | None) -> str | None:
    """linux.cgroupsPath, where it is a path and not systemd's SLICE:PREFIX:NAME."""
    path = text_of(mapping(config, "linux").get("cgroupsPath"))
    return path if path is not None and path.startswith("/") else None
