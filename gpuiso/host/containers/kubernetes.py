# SPDX-License-Identifier: Apache-2.0
"""The names Kubernetes gave, from the annotations that CRI implementations put into the OCI config.

containerd: pkg/cri/annotations; CRI-O: the kubelet's labels and pkg/annotations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuiso.host.containers.state_files import text_of

__all__ = ["is_sandbox", "pod_name"]


def pod_name(annotations: Mapping[str, Any]) -> str | None:
    """``NAMESPACE/POD/CONTAINER``, ``NAMESPACE/POD`` for a pod's sandbox, None if Kubernetes did not make it."""

    def first(*names: str) -> str | None:
        return next((value for name in names if (value := text_of(annotations.get(name)))), None)

    namespace = first("io.kubernetes.cri.sandbox-namespace", "io.kubernetes.pod.namespace")
    pod = first("io.kubernetes.cri.sandbox-name", "io.kubernetes.pod.name")
    container = first("io.kubernetes.cri.container-name", "io.kubernetes.container.name")
    if pod is None:
        return container
    parts = [namespace or "default", pod]
    if container is not None and not is_sandbox(annotations):
        parts.append(container)
    return "/".join(parts)


def is_sandbox(annotations: Mapping[str, Any]) -> bool:
    """Whether it only holds a pod's namespaces (the pause container)."""
    kinds = ("io.kubernetes.cri.container-type", "io.kubernetes.cri-o.ContainerType")
    return any(annotations.get(kind) == "sandbox" for kind in kinds)
