# SPDX-License-Identifier: Apache-2.0
"""All GPUs of a host, whoever made them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from gpuiso.errors import Unknown
from gpuiso.gpu.drm import drm_gpus, kfd_node
from gpuiso.gpu.majors import character_majors
from gpuiso.gpu.model import Inventory
from gpuiso.gpu.nvidia import driver_version, nvidia_gpus, nvidia_shared_nodes
from gpuiso.gpu.pci import PciFunction, display_functions
from gpuiso.host.protocol import Host

__all__ = ["build_inventory"]


_T = TypeVar("_T")


class _Sources:
    """Asks, and remembers what could not be known."""

    def __init__(self) -> None:
        self.missing: list[str] = []

    def ask(self, question: Callable[[], _T], default: _T) -> _T:
        try:
            return question()
        except Unknown as error:
            self.missing.append(error.message)
            return default


def build_inventory(host: Host) -> Inventory:
    """What GPUs there are and which nodes they need.

    A source that this host does not give is named in ``not_examined``; the rest is still told.
    """
    sources = _Sources()
    functions = sources.ask(lambda: display_functions(host), ())
    majors = sources.ask(lambda: character_majors(host), {})
    driver = sources.ask(lambda: driver_version(host), None)
    nvml = sources.ask(host.nvml, None)
    gpus = sources.ask(lambda: nvidia_gpus(host, functions, majors, nvml), ())
    gpus += sources.ask(lambda: drm_gpus(host, functions), ())
    shared = sources.ask(lambda: nvidia_shared_nodes(host, majors), ())
    shared += sources.ask(lambda: kfd_node(host, majors), ())
    return Inventory(
        gpus=tuple(sorted(gpus, key=lambda gpu: gpu.pci_address)),
        shared_nodes=shared,
        driver_version=None if driver is None else driver.version,
        open_modules=None if driver is None else driver.open_modules,
        cuda_version=None if nvml is None else nvml.get("cuda_version"),
        not_examined=tuple(sources.missing),
    )
