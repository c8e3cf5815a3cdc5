# SPDX-License-Identifier: Apache-2.0
"""Which GPU a node opens: its numbers tell, whatever its name says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpuiso.errors import Unknown
from gpuiso.gpu.model import Gpu
from gpuiso.host.protocol import Node

__all__ = ["Carrier", "carriers"]


@dataclass(frozen=True, slots=True)
class Carrier:
    """``path`` opens the GPU; None where no node does. ``note`` says what is odd about it, None if nothing is."""

    gpu: Gpu
    path: str | None
    note: str | None = None


def carriers(gpus: Sequence[Gpu], stat: Callable[[str], Node | None]) -> tuple[Carrier, ...]:
    """For each NVIDIA GPU whose numbers are known, the node that opens it in the view that ``stat`` looks into.

    A GPU is left out where its own node cannot be looked at.
    """
    seen: dict[str, Node | None] = {}
    wanted: dict[str, tuple[Gpu, tuple[int, int]]] = {}
    for gpu in gpus:
        node = gpu.node
        if gpu.vendor != "nvidia" or gpu.index is None or node is None or node.major is None or node.minor is None:
            continue
        try:
            seen[node.path] = stat(node.path)
        except Unknown:
            continue
        wanted[node.path] = gpu, (node.major, node.minor)
    return tuple(_carrier(path, gpu, numbers, seen) for path, (gpu, numbers) in wanted.items())


def _carrier(own: str, gpu: Gpu, numbers: tuple[int, int], seen: dict[str, Node | None]) -> Carrier:
    found = [path for path, node in seen.items() if node is not None and _carries(node, numbers)]
    if own in found:
        return Carrier(gpu, own)
    what = f"GPU {gpu.index} is {numbers[0]}:{numbers[1]}"
    if found:
        return Carrier(gpu, found[0], f"{what}, which is not {own} but {found[0]} here")
    node = seen[own]
    if node is None:
        return Carrier(gpu, None, f"{what}, and {own} does not exist")
    is_device = node.type in ("b", "c")
    actual = f"{node.type} {node.major}:{node.minor}" if is_device else "no device"
    return Carrier(gpu, None, f"{what}, and {own} is {actual}: it does not open that GPU")


def _carries(node: Node, numbers: tuple[int, int]) -> bool:
    return node.type == "c" and (node.major, node.minor) == numbers
