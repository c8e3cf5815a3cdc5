# SPDX-License-Identifier: Apache-2.0
"""ZE_AFFINITY_MASK and ZE_FLAT_DEVICE_HIERARCHY on Intel GPUs.

The mask is a set, not a list: it selects, and the order stays the driver's. In the FLAT and COMBINED hierarchies its
numbers count tiles, and ``X.Y`` selects nothing; in COMPOSITE ``X`` is a card and ``X.Y`` a tile of it. A number
that is out of range is passed over. Source: intel/compute-runtime ``ExecutionEnvironment::parseAffinityMask`` and
``comparePciIdBusNumber``. Not measured on a GPU.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence

from gpuiso.gpu.model import Gpu
from gpuiso.gpu.visibility.model import (
    CUDA_ERROR_NO_DEVICE,
    CUDA_SUCCESS,
    Kind,
    Reason,
    Token,
    Visibility,
    VisibleGpu,
)
from gpuiso.gpu.visibility.nodes import is_denied, node_paths, of_vendor, usable_node
from gpuiso.gpu.visibility.tokens import c_long, items, refused, walk

__all__ = ["level_zero_visible"]

MASK = "ZE_AFFINITY_MASK"
HIERARCHY = "ZE_FLAT_DEVICE_HIERARCHY"
INTEGRATED = "0000:00:02.0"
"""Where Intel's integrated GPU sits on every machine."""


def level_zero_visible(
    gpus: Sequence[Gpu],
    env: Mapping[str, str],
    *,
    denied: Collection[str] = (),
    tiles: Mapping[int, int] | None = None,
) -> Visibility:
    """What a process with this environment sees of Intel's GPUs through Level Zero.

    ``denied`` are paths or names of nodes. ``tiles`` is how many tiles a GPU has, by its index; without it each
    is taken to have one. An unset hierarchy counts as FLAT, the specification's default.
    """
    host = of_vendor(gpus, "intel")
    paths = node_paths(denied)
    allowed = _driver_order([gpu for gpu in host if not is_denied(gpu, paths)], env)
    hierarchy = env.get(HIERARCHY, "")
    composite = hierarchy == "COMPOSITE"
    mask = _Mask(allowed, tiles or {}, composite)
    value = env.get(MASK, "")
    warnings = []
    if value in ("", "default"):
        tokens = []
        mask.select_all()
    else:
        listed = items(value)
        tokens = walk(listed[:-1] if len(listed) > 1 and not listed[-1] else listed, _lex, mask.resolve)
        if any(token.reason is Reason.MALFORMED for token in tokens):
            tokens = refused(tokens, "the driver cannot read another part of the mask, and gives up")
            mask.clear()
        if tiles is None and allowed:
            warnings.append("the number of tiles is not known: each GPU is taken to have one")
    if hierarchy not in ("", "COMPOSITE", "FLAT", "COMBINED"):
        warnings.append(f"{HIERARCHY} is neither FLAT, COMPOSITE nor COMBINED, and is not read")
    if not host:
        warnings.append("Intel's driver holds no GPU of this host")
    elif not allowed:
        warnings.append("every Intel GPU of this host is denied")
    seen = mask.visible()
    return Visibility(
        api="level-zero",
        cuInit=CUDA_SUCCESS if seen else CUDA_ERROR_NO_DEVICE,
        gpus=seen,
        tokens=tuple(tokens),
        warnings=tuple(warnings),
    )


def _driver_order(gpus: list[Gpu], env: Mapping[str, str]) -> list[Gpu]:
    """PCI order, the integrated GPU last unless ZE_ENABLE_PCI_ID_DEVICE_ORDER is set."""
    number = c_long(env.get("ZE_ENABLE_PCI_ID_DEVICE_ORDER", ""))
    if number is not None and number[0] != 0:
        return gpus
    return sorted(gpus, key=lambda gpu: gpu.pci_address == INTEGRATED)


def _lex(position: int, text: str) -> Token:
    number = c_long(text.split(".")[0], 0)
    if number is None:
        return Token(MASK, position, text, Kind.WORD if text.strip() else Kind.EMPTY)
    return Token(MASK, position, text, Kind.INDEX, number=number[0] % 2**32)


class _Mask:
    """Which tiles of which GPU are selected."""

    def __init__(self, gpus: list[Gpu], tiles: Mapping[int, int], composite: bool) -> None:
        self.gpus = gpus
        self.counts = [max(1, tiles.get(gpu.index or 0, 1)) for gpu in gpus]
        self.composite = composite
        self.selected: list[set[int]] = [set() for _ in gpus]
        self.flat = [(card, tile) for card, count in enumerate(self.counts) for tile in range(count)]

    def select_all(self) -> None:
        self.selected = [set(range(count)) for count in self.counts]

    def clear(self) -> None:
        self.selected = [set() for _ in self.gpus]

    def resolve(self, token: Token) -> Token:
        parts = token.text.split(".")
        numbers = [c_long(part, 0) for part in parts[:2]]
        if None in numbers or len(parts) > 3:
            why = "it is not DEVICE or DEVICE.SUBDEVICE: the driver cannot read the mask and shows no GPU"
            return _passed(token, Reason.MALFORMED, why)
        number, count = token.number or 0, len(self.gpus) if self.composite else len(self.flat)
        if number >= count:
            left = f"the driver counts {count}, from 0 to {count - 1}" if count else "it finds none"
            return _passed(token, Reason.OUT_OF_RANGE, f"there is no device {parts[0].strip()}: {left}")
        if not self.composite:
            if len(parts) > 1:
                why = "DEVICE.SUBDEVICE selects nothing unless ZE_FLAT_DEVICE_HIERARCHY is COMPOSITE"
                return _passed(token, Reason.SUBDEVICE, why)
            card, tile = self.flat[number]
            return self._select(token, card, {tile})
        if len(parts) == 1:
            return self._select(token, number, set(range(self.counts[number])))
        tile = (numbers[1] or (0, ""))[0] % 2**32
        if len(parts) > 2 or tile >= self.counts[number]:
            return _passed(token, Reason.SUBDEVICE, f"device {number} has no such subdevice")
        return self._select(token, number, {tile})

    def _select(self, token: Token, card: int, tiles: set[int]) -> Token:
        token = dataclasses.replace(token, physical=self.gpus[card].index)
        if tiles <= self.selected[card]:
            return _passed(token, Reason.DUPLICATE, "it is selected already, which changes nothing")
        self.selected[card] |= tiles
        return token

    def visible(self) -> tuple[VisibleGpu, ...]:
        groups: list[tuple[Gpu, tuple[int, ...]]] = []
        for gpu, count, selected in zip(self.gpus, self.counts, self.selected, strict=True):
            if self.composite and selected:
                groups.append((gpu, () if len(selected) == count else tuple(sorted(selected))))
            elif not self.composite:
                groups.extend((gpu, () if count == 1 else (tile,)) for tile in sorted(selected))
        return tuple(
            VisibleGpu(index, gpu.index or 0, gpu.uuid, usable_node(gpu), tiles=tiles)
            for index, (gpu, tiles) in enumerate(groups)
        )


def _passed(token: Token, reason: Reason, why: str) -> Token:
    return dataclasses.replace(token, reason=reason, why=why)
