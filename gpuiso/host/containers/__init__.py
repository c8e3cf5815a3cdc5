# SPDX-License-Identifier: Apache-2.0
"""Containers, whatever engine runs them: Docker, podman, containerd (Kubernetes, k3s, nerdctl), CRI-O, runc, crun.

Pure functions of a host: what engines keep in their state directories, what Docker answers, and what cgroups are
named after.
"""

from __future__ import annotations

from gpuiso.host.containers.cgroup_names import container_in_path, unit_in_path
from gpuiso.host.containers.listing import Containers, find_containers
from gpuiso.host.containers.model import Container

__all__ = ["Container", "Containers", "container_in_path", "find_containers", "unit_in_path"]
