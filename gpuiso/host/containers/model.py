# SPDX-License-Identifier: Apache-2.0
"""What is known of a container, whatever engine runs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Container"]


@dataclass(frozen=True, slots=True)
class Container:
    """One container; None where its engine does not tell, or is not known.

    ``engine`` is who manages it: ``docker``, ``podman``, ``containerd`` (with ``namespace``), ``cri-o``, ``lxc``,
    ``systemd-nspawn``, or ``runc`` and ``crun`` where nobody does. ``runtime`` is what the engine runs it with
    (``runc``, ``crun``, ``nvidia``, a path). ``pid`` is its first process, in this host's numbers; None if it does not
    run. ``cgroup`` is the topmost cgroup that is the container's own, in the v2 tree or, where that is not used, in
    that of the devices controller.

    ``name`` is the engine's; of a Kubernetes container ``NAMESPACE/POD/CONTAINER``, of its sandbox ``NAMESPACE/POD``.
    ``config`` is the path of the OCI config.json it was started with, ``env`` the environment in there (config.md,
    "process"), which the processes themselves may have changed. ``owner`` is the user of a rootless container.
    """

    id: str
    engine: str
    name: str | None = None
    runtime: str | None = None
    pid: int | None = None
    cgroup: str | None = None
    image: str | None = None
    config: str | None = None
    env: Mapping[str, str] | None = None
    namespace: str | None = None
    owner: int | None = None
    sandbox: bool = False

    @property
    def running(self) -> bool:
        """Whether it has a first process."""
        return self.pid is not None

    @property
    def short(self) -> str:
        """For people: the name, or the first 12 digits of the id as engines print it."""
        return self.name or self.id[:12]
