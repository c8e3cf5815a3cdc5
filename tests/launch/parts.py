# SPDX-License-Identifier: Apache-2.0
"""Small hosts for tests of leases."""

from __future__ import annotations

from collections.abc import Sequence

from gpuiso.grants.spec import Request, parse_request
from gpuiso.grants.units import Unit

__all__ = ["counted", "gpus", "mig_gpu"]


def gpus(count: int) -> tuple[Unit, ...]:
    """NVIDIA GPUs, ``GPU-0`` and so on."""
    return tuple(
        Unit(
            f"GPU-{n}", f"GPU-{n}", "nvidia", n, f"0000:{n:02x}:00.0", f"GPU-{n}", None, ((f"/dev/nvidia{n}", 195, n),)
        )
        for n in range(count)
    )


def mig_gpu(index: int, *profiles: str) -> tuple[Unit, ...]:
    """The MIG devices of one GPU."""
    return tuple(
        Unit(f"MIG-{index}-{n}", f"GPU-{index}", "nvidia", index, f"0000:{index:02x}:00.0", f"MIG-{index}-{n}", profile)
        for n, profile in enumerate(profiles)
    )


def counted(count: int, units: Sequence[Unit]) -> Request:
    """A request for that many."""
    return parse_request(str(count), units)
