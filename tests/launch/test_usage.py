# SPDX-License-Identifier: Apache-2.0
"""Who uses GPUs without a lease."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuiso.gpu.inventory import build_inventory
from gpuiso.grants.units import units_of
from gpuiso.launch.lease import CgroupId, Lease
from gpuiso.launch.usage import unleased
from tests.records import UUIDS, RecordMaker

WORK = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0")


@pytest.fixture
def maker(tmp_path: Path) -> RecordMaker:
    return RecordMaker(tmp_path)


def users(maker: RecordMaker, *leases: Lease) -> dict[str, tuple[int, ...]]:
    host = maker.host()
    return unleased(host, units_of(build_inventory(host)), leases)


def nvml(maker: RecordMaker, *pids: int) -> None:
    maker.tools["nvml.json"] = {
        "driver_version": "580.159.04",
        "cuda_version": "13.0",
        "gpus": [
            {
                "index": n,
                "uuid": uuid,
                "pci_bus_id": f"00000000:{n:02X}:00.0",
                "processes": [{"pid": pid, "type": "C", "used_memory_mib": 1} for pid in (pids if n == 1 else ())],
            }
            for n, uuid in enumerate(UUIDS)
        ],
    }


def lease(cgroup: str) -> Lease:
    place = CgroupId("/sys/fs/cgroup", cgroup, 1, "boot")
    return Lease("1", "job", ((UUIDS[0], UUIDS[0]),), False, 0, "root", (), 99, 0, 0, place)


def test_who_computes_is_seen_by_descriptors(maker: RecordMaker) -> None:
    maker.add_process(100, cgroup="/job", descriptors=WORK)
    assert users(maker) == {UUIDS[0]: (100,)}


def test_who_has_a_lease_is_not(maker: RecordMaker) -> None:
    maker.add_process(100, cgroup="/gpuiso-run-1/inner", descriptors=WORK)
    maker.add_process(101, cgroup="/gpuiso-run-11", descriptors=WORK)
    assert users(maker, lease("/gpuiso-run-1")) == {UUIDS[0]: (101,)}


def test_monitoring_is_no_use(maker: RecordMaker) -> None:
    """nvidia-persistenced and exporters hold the nodes of all GPUs open."""
    maker.add_process(100, descriptors=("/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia1"))
    assert users(maker) == {}


def test_nvml_knows_which_gpu_of_several_open_ones_is_used(maker: RecordMaker) -> None:
    maker.add_process(100, descriptors=(*WORK, "/dev/nvidia1"))
    assert users(maker) == {UUIDS[0]: (100,), UUIDS[1]: (100,)}
    nvml(maker, 100)
    assert users(maker) == {UUIDS[1]: (100,)}


def test_a_process_of_another_namespace_counts(maker: RecordMaker) -> None:
    nvml(maker, 4711)
    assert users(maker) == {UUIDS[1]: (4711,)}
