# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from gpuiso.gpu.visibility import Reason
from gpuiso.gpu.visibility.level_zero import level_zero_visible
from tests.gpu_visibility.values import gpu

CARDS = [gpu(n, vendor="intel", driver="xe", name="Data Center GPU Max 1550") for n in range(3)]
TILES = {0: 2, 1: 2, 2: 1}
Shown = list[tuple[int, tuple[int, ...]]]


def shown(mask: str | None, hierarchy: str | None = None) -> Shown:
    env = {"ZE_AFFINITY_MASK": mask, "ZE_FLAT_DEVICE_HIERARCHY": hierarchy}
    seen = level_zero_visible(CARDS, {k: v for k, v in env.items() if v is not None}, tiles=TILES)
    return [(entry.physical, entry.tiles) for entry in seen.gpus]


FLAT: Shown = [(0, (0,)), (0, (1,)), (1, (0,)), (1, (1,)), (2, ())]


@pytest.mark.parametrize("hierarchy", [None, "FLAT", "COMBINED"])
@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (None, FLAT),
        ("", FLAT),
        ("default", FLAT),
        ("0", FLAT[:1]),
        ("3,0", [FLAT[0], FLAT[3]]),
        ("9,4", [FLAT[4]]),
        ("0,0", FLAT[:1]),
        ("0.1", []),
        ("0,1.0", FLAT[:1]),
        ("0x1", [FLAT[1]]),
        ("-1,1", [FLAT[1]]),
        ("1,", [FLAT[1]]),
        ("0,word", []),
        ("0,,1", []),
    ],
)
def test_flat(mask: str | None, expected: Shown, hierarchy: str | None) -> None:
    assert shown(mask, hierarchy) == expected


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (None, [(0, ()), (1, ()), (2, ())]),
        ("1,0", [(0, ()), (1, ())]),
        ("1.1", [(1, (1,))]),
        ("1.1,1.0", [(1, ())]),
        ("0.0,1", [(0, (0,)), (1, ())]),
        ("2.0", [(2, ())]),
        ("2.1,5", []),
        ("0.0.1", []),
        ("0.x", []),
    ],
)
def test_composite(mask: str | None, expected: Shown) -> None:
    assert shown(mask, "COMPOSITE") == expected


def test_reasons() -> None:
    tokens = level_zero_visible(CARDS, {"ZE_AFFINITY_MASK": "0,0,9,0.1"}, tiles=TILES).tokens
    assert [t.reason for t in tokens] == [None, Reason.DUPLICATE, Reason.OUT_OF_RANGE, Reason.SUBDEVICE]
    tokens = level_zero_visible(CARDS, {"ZE_AFFINITY_MASK": "0,gpu1"}, tiles=TILES).tokens
    assert [t.reason for t in tokens] == [Reason.REFUSED, Reason.MALFORMED]


def test_the_integrated_gpu_comes_last_unless_pci_order_is_asked_for() -> None:
    gpus = [gpu(0, vendor="intel", pci_address="0000:00:02.0"), gpu(1, vendor="intel")]
    assert [entry.physical for entry in level_zero_visible(gpus, {}).gpus] == [1, 0]
    in_order = level_zero_visible(gpus, {"ZE_ENABLE_PCI_ID_DEVICE_ORDER": "1"})
    assert [entry.physical for entry in in_order.gpus] == [0, 1]


def test_denial_comes_first() -> None:
    seen = level_zero_visible(CARDS, {"ZE_AFFINITY_MASK": "0"}, denied=["/dev/dri/renderD128"])
    assert [entry.physical for entry in seen.gpus] == [1]
    assert seen.warnings == ("the number of tiles is not known: each GPU is taken to have one",)
    nothing = level_zero_visible(CARDS, {}, denied=[f"dri/renderD{128 + n}" for n in range(3)])
    assert (nothing.cuInit, nothing.warnings) == (100, ("every Intel GPU of this host is denied",))


def test_an_unknown_hierarchy_is_said() -> None:
    seen = level_zero_visible(CARDS, {"ZE_FLAT_DEVICE_HIERARCHY": "flat"})
    assert "is not read" in seen.warnings[0]
