# SPDX-License-Identifier: Apache-2.0
"""What the environment selects is what was leased."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuiso.errors import UsageError
from gpuiso.gpu.inventory import build_inventory
from gpuiso.gpu.visibility.cuda import cuda_visible
from gpuiso.grants.units import Unit, units_of
from gpuiso.launch.environment import compose, inherited
from tests.launch.parts import gpus, mig_gpu
from tests.records import RecordMaker


def amd(number: int, uuid: str | None) -> Unit:
    name = f"amd:0000:{number:02x}:00.0"
    return Unit(name, name, "amd", number, name[4:], uuid)


def test_nvidia() -> None:
    units = (gpus(3)[2], gpus(3)[0])
    found = compose({"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "0", "GPU_DEVICE_ORDINAL": "1"}, {"A": "b"}, units)
    assert found.values == {
        "PATH": "/bin",
        "A": "b",
        "CUDA_VISIBLE_DEVICES": "GPU-2,GPU-0",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "NVIDIA_VISIBLE_DEVICES": "void",
    }
    assert found.notices == (
        "CUDA_VISIBLE_DEVICES=0 was replaced by CUDA_VISIBLE_DEVICES=GPU-2,GPU-0",
        "GPU_DEVICE_ORDINAL=1 was removed: it would select among the GPUs that were leased",
    )


def test_what_is_right_already_is_not_mentioned() -> None:
    inherited = compose({}, {}, gpus(1)).values
    assert compose(inherited, {}, gpus(1)).notices == ()


def test_mig_and_none() -> None:
    assert compose({}, {}, mig_gpu(0, "1g.18gb")).set["CUDA_VISIBLE_DEVICES"] == "MIG-0-0"
    assert compose({}, {}, ()).set == {"NVIDIA_VISIBLE_DEVICES": "void", "CUDA_VISIBLE_DEVICES": ""}


def test_amd_by_unique_id_or_by_place() -> None:
    named = compose({}, {}, [amd(3, "0x1a2b")]).set
    assert named["ROCR_VISIBLE_DEVICES"] == "GPU-0000000000001a2b"
    assert named["HIP_VISIBLE_DEVICES"] == "0"
    assert "CUDA_VISIBLE_DEVICES" not in named
    assert compose({}, {}, [amd(3, None), amd(4, "0x2")]).set["ROCR_VISIBLE_DEVICES"] == "0,1"


def test_a_selecting_variable_cannot_be_given() -> None:
    with pytest.raises(UsageError, match="CUDA_VISIBLE_DEVICES would select GPUs"):
        compose({}, {"CUDA_VISIBLE_DEVICES": "1"}, gpus(2))


def test_cuda_sees_exactly_what_was_leased(tmp_path: Path) -> None:
    """The environment and the denial together, judged by what CUDA was measured to make of them."""
    inventory = build_inventory(RecordMaker(tmp_path).host())
    units = units_of(inventory)
    for unit in units:
        denied = [path for other in units if other is not unit for path, _, _ in other.nodes]
        seen = cuda_visible(inventory.gpus, compose({}, {}, [unit]).values, denied=denied)
        assert seen.cuInit == 0
        assert [gpu.uuid for gpu in seen.gpus] == [unit.uuid]


def test_what_python_adds_is_not_passed_on() -> None:
    environ = {"PATH": "/bin", "LC_CTYPE": "C.UTF-8"}
    assert inherited(environ, b"PATH=/bin\0") == {"PATH": "/bin"}
    assert inherited(environ, b"LC_CTYPE=C.UTF-8\0PATH=/bin\0") == environ
