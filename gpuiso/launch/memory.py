# SPDX-License-Identifier: Apache-2.0
"""What can hold a limit of device memory here: dmem.max of cgroup v2, or MPS for those who compute through it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpuiso.errors import NotSupported
from gpuiso.grants.units import Unit
from gpuiso.host.protocol import Host
from gpuiso.policy.limits import Bytes

__all__ = ["MemoryLimit", "memory_limit"]

_PIPE_DIRECTORY = "/tmp/nvidia-mps"  # noqa: S108 (where nvidia-cuda-mps-control puts it unless told otherwise)


@dataclass(frozen=True)
class MemoryLimit:
    """``files`` are cgroup files as in ResolvedPolicy, ``variables`` for the environment; one of them is not empty."""

    files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)


def memory_limit(
    host: Host, mount: str, units: Sequence[Unit], limit: Bytes, environ: Mapping[str, str]
) -> MemoryLimit:
    """``limit`` is bytes of each GPU. :raises NotSupported: nothing here would hold it."""
    regions = _regions(host, mount)
    lines = tuple(f"{region} {limit}" for unit in units for region in regions if unit.pci_address in region)
    if lines and all(any(unit.pci_address in line for line in lines) for unit in units):
        return MemoryLimit(files={"dmem.max": lines})
    pipes = environ.get("CUDA_MPS_PIPE_DIRECTORY", _PIPE_DIRECTORY)
    if host.stat(f"{pipes}/control") is not None and limit != "max" and all(unit.vendor == "nvidia" for unit in units):
        # nvidia-cuda-mps-control(1): devices by their place in CUDA_VISIBLE_DEVICES, sizes in M or G.
        sizes = ",".join(f"{place}={limit >> 20}M" for place in range(len(units)))
        return MemoryLimit(variables={"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": sizes})
    raise NotSupported(
        "nothing here holds a limit of GPU memory: this kernel's dmem controller (Linux 6.14) names no region of "
        f"these GPUs, and there is no MPS at {pipes}",
        hint="start nvidia-cuda-mps-control -d, or give the workload a MIG device (--gpus mig:PROFILE)",
    )


def _regions(host: Host, mount: str) -> list[str]:
    text = host.text(f"{mount}/dmem.capacity") or ""
    return [line.split()[0] for line in text.splitlines() if line.strip()]
