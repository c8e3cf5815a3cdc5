# SPDX-License-Identifier: Apache-2.0
"""CRI-O's containers: what Kubernetes calls them stands in the annotations of the OCI config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpuiso.host.containers.kubernetes import is_sandbox, pod_name
from gpuiso.host.containers.model import Container
from gpuiso.host.containers.state_files import text_of
from gpuiso.host.containers.storage import Stored

__all__ = ["MANAGER", "as_crio"]

MANAGER = "cri-o"  # of the annotation io.container.manager


def as_crio(container: Container, annotations: Mapping[str, Any], stored: Stored | None) -> Container:
    """The same container, with what Kubernetes calls it."""
    return replace(
        container,
        engine="cri-o",
        name=pod_name(annotations) or (None if stored is None else stored.name),
        image=text_of(annotations.get("io.kubernetes.cri-o.ImageName")) or (None if stored is None else stored.image),
        namespace=text_of(annotations.get("io.kubernetes.pod.namespace")),
        sandbox=is_sandbox(annotations),
    )
