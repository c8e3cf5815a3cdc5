# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from gpuiso.gpu.visibility import Reason
from gpuiso.gpu.visibility.rocm import rocm_visible
from tests.gpu_visibility.values import gpu

UUIDS = ["GPU-aa11000000000001", "GPU-aa22000000000002", "GPU-00000000000000b3", "GPU-0"]
GPUS = [gpu(n, uuid, vendor="amd", driver="amdgpu", name="MI300X") for n, uuid in enumerate(UUIDS)]


def shown(**env: str) -> list[int]:
    return [seen.physical for seen in rocm_visible(GPUS, env).gpus]


def reasons(**env: str) -> list[Reason | None]:
    return [token.reason for token in rocm_visible(GPUS, env).tokens]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", []),
        ("0", [0]),
        ("2,0", [2, 0]),
        (" 0x1 , 010", [1]),
        ("0x1,02", [1, 2]),
        ("0,0,1", [0]),
        ("0,9,1", [0]),
        ("0,-1,1", [0]),
        ("0,1x,2", [0]),
        ("0,,1", [0]),
        ("0,1,", [0, 1]),
        ("GPU-aa11", [0]),
        ("gpu-AA22,0", [1, 0]),
        ("GPU-aa", []),
        ("G", []),
        ("GPU-", []),
        ("GPU-00000000000000b3", [2]),
        ("GPU-0000000000000000", []),
        ("GPU-aa110000000000011", []),
    ],
)
def test_rocr(value: str, expected: list[int]) -> None:
    seen = rocm_visible(GPUS, {"ROCR_VISIBLE_DEVICES": value})
    assert [entry.physical for entry in seen.gpus] == expected
    assert seen.cuInit == (0 if expected else 100)


def test_unset_shows_all() -> None:
    assert shown() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("1,0", [1, 0]),
        ("1,1,0", [1, 0]),
        ("1,", [1]),
        ("0, 1", [0]),
        ("01", []),
        ("+1", []),
        ("-1", []),
        ("7,0", []),
        ("1,,0", [1]),
        ("GPU-aa22,0", [1, 0]),
        ("GPU-AA22", []),
    ],
)
def test_hip(value: str, expected: list[int]) -> None:
    assert shown(HIP_VISIBLE_DEVICES=value) == expected
    assert shown(CUDA_VISIBLE_DEVICES=value) == expected


def test_hip_counts_what_rocr_left() -> None:
    assert shown(ROCR_VISIBLE_DEVICES="3,2", HIP_VISIBLE_DEVICES="1,0") == [2, 3]
    assert shown(ROCR_VISIBLE_DEVICES="2,3", HIP_VISIBLE_DEVICES="2,3") == []
    assert reasons(ROCR_VISIBLE_DEVICES="2,3", HIP_VISIBLE_DEVICES="2,3") == [
        None,
        None,
        Reason.OUT_OF_RANGE,
        Reason.AFTER_END,
    ]
    variables = [
        token.variable for token in rocm_visible(GPUS, {"ROCR_VISIBLE_DEVICES": "2", "HIP_VISIBLE_DEVICES": "0"}).tokens
    ]
    assert variables == ["ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"]


def test_an_empty_hip_variable_hides_nothing_and_cuda_then_counts() -> None:
    seen = rocm_visible(GPUS, {"HIP_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": "2"})
    assert [entry.physical for entry in seen.gpus] == [2]
    assert seen.warnings == ("HIP_VISIBLE_DEVICES is empty, which HIP takes for unset: it hides nothing",)
    seen = rocm_visible(GPUS, {"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "2"})
    assert [entry.physical for entry in seen.gpus] == [1]
    assert "CUDA_VISIBLE_DEVICES is not read" in seen.warnings[0]


def test_gpu_device_ordinal_is_opencls() -> None:
    env = {"GPU_DEVICE_ORDINAL": "1", "HIP_VISIBLE_DEVICES": "0"}
    assert [entry.physical for entry in rocm_visible(GPUS, env, api="opencl").gpus] == [1]
    seen = rocm_visible(GPUS, env)
    assert [entry.physical for entry in seen.gpus] == [0]
    assert "GPU_DEVICE_ORDINAL" in seen.warnings[0]


def test_denial_comes_first() -> None:
    seen = rocm_visible(GPUS, {"ROCR_VISIBLE_DEVICES": "0"}, denied=["dri/renderD128"])
    assert [(entry.physical, entry.node) for entry in seen.gpus] == [(1, "/dev/dri/renderD129")]
    gone = rocm_visible(GPUS, {}, denied=["kfd"])
    assert (gone.cuInit, gone.gpus) == (100, ())
    assert gone.warnings == ("/dev/kfd is denied: ROCm starts without any GPU",)


def test_a_list_longer_than_the_gpus_is_cut() -> None:
    assert reasons(ROCR_VISIBLE_DEVICES="0,1,2,3,0") == [None, None, None, None, Reason.TOO_MANY]
