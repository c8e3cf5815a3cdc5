# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from gpuiso.gpu.visibility import Reason
from gpuiso.gpu.visibility.nvidia import CAPABILITIES, driver_capabilities, nvidia_visible
from tests.gpu_visibility.values import gpu, mig, oracle, oracle_gpus

FOUR = oracle_gpus(oracle("cuda_visible_devices.json"))
UUID = FOUR[2].uuid or ""
PARTED = [gpu(0), gpu(1, mig_enabled=True, mig_devices=(mig(7), mig(8)))]


@pytest.mark.parametrize(
    ("value", "mode", "expected"),
    [
        (None, "void", []),
        ("", "void", []),
        ("void", "void", []),
        ("0,void", "void", []),
        ("none", "none", []),
        ("all,none", "none", []),
        ("all", "all", [0, 1, 2, 3]),
        ("1,all", "all", [0, 1, 2, 3]),
        ("nvidia.com/gpu=all", "all", [0, 1, 2, 3]),
        ("2,0", "list", [0, 2]),
        (" 1 ,, 3", "list", [1, 3]),
        ("1,1", "list", [1]),
        ("01", "list", [1]),
        (UUID, "list", [2]),
        (UUID.upper(), "list", [2]),
        ("nvidia.com/gpu=3", "list", [3]),
        ("0000:02:00.0", "list", [1]),
        ("00000000:02:00.0", "list", [1]),
    ],
)
def test_values(value: str | None, mode: str, expected: list[int]) -> None:
    got = nvidia_visible(FOUR, {} if value is None else {"NVIDIA_VISIBLE_DEVICES": value})
    assert (got.mode, [entry.physical for entry in got.gpus], got.fails) == (mode, expected, None)
    assert [entry.index for entry in got.gpus] == list(range(len(expected)))
    assert got.driver_files == (mode != "void")


@pytest.mark.parametrize("value", ["4", "-1", "0-2", UUID[:12], "small", "MIG-x", "0:0", "9:9:9.0"])
def test_an_unknown_device_stops_the_container(value: str) -> None:
    got = nvidia_visible(FOUR, {"NVIDIA_VISIBLE_DEVICES": f"0,{value}"})
    assert (got.gpus, got.driver_files) == ((), False)
    assert got.fails == f"unknown device {value!r}"
    assert got.tokens[0].reason is Reason.REFUSED
    assert len(got.ignored) == 2


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("1:0", [(1, "MIG-00000007")]),
        ("1:1,0", [(0, None), (1, "MIG-00000008")]),
        ("MIG-00000008-0000-5000-8000-000000000000", [(1, "MIG-00000008")]),
        ("all", [(0, None), (1, "MIG-00000007"), (1, "MIG-00000008")]),
    ],
)
def test_mig(value: str, expected: list[tuple[int, str | None]]) -> None:
    got = nvidia_visible(PARTED, {"NVIDIA_VISIBLE_DEVICES": value})
    assert [(entry.physical, entry.mig and entry.mig[:12]) for entry in got.gpus] == expected


def test_an_old_image_gets_everything_unasked() -> None:
    assert nvidia_visible(FOUR, {"CUDA_VERSION": "8.0.61"}).mode == "all"
    assert driver_capabilities({"CUDA_VERSION": "8.0.61"}).granted == CAPABILITIES
    assert nvidia_visible(FOUR, {"CUDA_VERSION": "12.4", "NVIDIA_REQUIRE_CUDA": "cuda>=12.4"}).mode == "void"


@pytest.mark.parametrize(
    ("value", "granted", "unsupported"),
    [
        (None, {"utility", "compute"}, ()),
        ("", {"utility", "compute"}, ()),
        ("all", set(CAPABILITIES), ()),
        ("compute", {"compute"}, ()),
        (" video , graphics", {"video", "graphics"}, ()),
        ("display", {"display", "graphics"}, ()),
        ("compute,gpu,gpu", {"compute"}, ("gpu",)),
    ],
)
def test_capabilities(value: str | None, granted: set[str], unsupported: tuple[str, ...]) -> None:
    got = driver_capabilities({} if value is None else {"NVIDIA_DRIVER_CAPABILITIES": value})
    assert (set(got.granted), got.unsupported) == (granted, unsupported)
