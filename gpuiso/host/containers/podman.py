# SPDX-License-Identifier: Apache-2.0
"""podman's containers, root's and those of users: what its storage says beside what the runtime does."""

from __future__ import annotations

from dataclasses import replace

from gpuiso.host.containers.model import Container
from gpuiso.host.containers.storage import Stored

__all__ = ["MANAGER", "as_podman"]

MANAGER = "libpod"  # of the annotation io.container.manager


def as_podman(container: Container, stored: Stored | None) -> Container:
    """The same container, with what podman calls it."""
    if stored is None:
        return replace(container, engine="podman")
    return replace(container, engine="podman", name=stored.name, image=stored.image)
