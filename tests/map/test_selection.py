# SPDX-License-Identifier: Apache-2.0
"""What variables select, by column."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from gpuiso.doctor.map.columns import columns_of
from gpuiso.doctor.map.selection import Selection, select
from gpuiso.gpu.inventory import build_inventory
from gpuiso.host import open_host
from tests.map.hosts import MapMaker
from tests.records import UUIDS
from tests.support import REPOSITORY

CUDA, RUNTIME = "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"


def selected(
    tmp_path: Path, env: Mapping[str, str], *, absent: frozenset[str] = frozenset(), container: bool = True
) -> Selection:
    inventory = build_inventory(MapMaker(tmp_path, gpus=3).host())
    return select(inventory, columns_of(inventory), env, absent=absent, container=container)


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, None),
        ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, None),
        ({CUDA: "0,2"}, {"0", "2"}),
        ({CUDA: UUIDS[1]}, {"1"}),
        ({CUDA: ""}, set()),
        ({CUDA: "<b>"}, set()),
        ({CUDA: "1,1"}, {"1"}),
        ({RUNTIME: "0,1"}, {"0", "1"}),
        ({RUNTIME: UUIDS[1]}, {"1"}),
        ({RUNTIME: "all"}, None),
        ({RUNTIME: "void"}, None),
        ({RUNTIME: "none"}, set()),
        ({RUNTIME: "7"}, None),
        ({RUNTIME: "0,1", CUDA: "1"}, {"1"}),
        ({RUNTIME: "0,1", CUDA: "2"}, set()),
    ],
)
def test_nvidia(tmp_path: Path, env: dict[str, str], expected: set[str] | None) -> None:
    found = selected(tmp_path, env)
    assert found == ({} if expected is None else {"nvidia": frozenset(expected)})


def test_the_runtimes_variable_means_nothing_outside_of_containers(tmp_path: Path) -> None:
    assert selected(tmp_path, {RUNTIME: "0"}, container=False) == {}


def test_absent_nodes_shift_indexes_and_a_uuid_names_its_gpu_anyway(tmp_path: Path) -> None:
    absent = frozenset({"/dev/nvidia0"})
    assert selected(tmp_path, {CUDA: "0"}, absent=absent) == {"nvidia": {"1"}}
    assert selected(tmp_path, {CUDA: UUIDS[0]}, absent=absent) == {"nvidia": {"0"}}


def test_amd() -> None:
    inventory = build_inventory(open_host(str(REPOSITORY / "tests/data/hosts/amd-double-mask/faulty")))
    columns = columns_of(inventory)
    assert {column.gpu.vendor for column in columns} == {"amd"}
    found = select(inventory, columns, {"ROCR_VISIBLE_DEVICES": "1"}, absent=frozenset(), container=False)
    assert found == {"amd": {columns[1].id}}
    alias = select(inventory, columns, {CUDA: "0"}, absent=frozenset(), container=False)
    assert alias == {"amd": {columns[0].id}}


def test_intel() -> None:
    inventory = build_inventory(open_host(str(REPOSITORY / "tests/data/hosts/intel-mask/healthy")))
    columns = columns_of(inventory)
    found = select(inventory, columns, {"ZE_AFFINITY_MASK": "0"}, absent=frozenset(), container=False)
    assert found["intel"] == {columns[0].id}


def test_mig_devices() -> None:
    inventory = build_inventory(open_host(str(REPOSITORY / "tests/data/hosts/mig-single/healthy")))
    columns = columns_of(inventory)
    assert [column.id for column in columns] == ["0:1/0", "0:2/0", "1"]
    second = columns[1].mig
    assert second is not None
    assert second.uuid is not None
    found = select(inventory, columns, {CUDA: second.uuid}, absent=frozenset(), container=False)
    assert found == {"nvidia": {"0:2/0"}}
    denied = frozenset(node.path for node in second.nodes)
    found = select(inventory, columns, {CUDA: second.uuid}, absent=denied, container=False)
    assert found == {"nvidia": {"0:2/0"}}
    given = select(inventory, columns, {RUNTIME: second.uuid}, absent=frozenset(), container=True)
    assert given == {"nvidia": {"0:2/0"}}
    assert "/dev/nvidia0" in columns[0].nodes
