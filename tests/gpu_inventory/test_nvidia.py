# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

from gpuiso.gpu.inventory import build_inventory
from gpuiso.host import open_host
from tests.records import UUIDS, RecordMaker
from tests.support import SHARED, needs_shared


@needs_shared
def test_four_h200() -> None:
    assert SHARED is not None
    inventory = build_inventory(open_host(str(SHARED / "hosts" / "h200-x4")))
    assert inventory.driver_version == "580.159.04"
    assert inventory.open_modules is True
    assert inventory.cuda_version == "13.0"
    assert [(g.index, g.minor, g.pci_address, g.uuid) for g in inventory.of("nvidia")] == [
        (0, 0, "0000:00:06.0", "GPU-98b0e715-3bf7-c370-6d85-c524e4400665"),
        (1, 1, "0000:00:07.0", "GPU-759a6656-c90b-d548-2a90-a29b9fa5ff51"),
        (2, 2, "0000:00:08.0", "GPU-f80bc0db-c0e1-5637-ebb8-e3b91d26ab4a"),
        (3, 3, "0000:00:09.0", "GPU-8829a952-49f5-12c1-7b8e-d411fa644d35"),
    ]
    assert all(node.right for gpu in inventory.gpus for node in gpu.nodes)
    assert {node.path: (node.major, node.minor) for node in inventory.shared_nodes} == {
        "/dev/nvidiactl": (195, 255),
        "/dev/nvidia-uvm": (238, 0),
        "/dev/nvidia-uvm-tools": (238, 1),
        "/dev/nvidia-caps/nvidia-cap1": (241, 1),
        "/dev/nvidia-caps/nvidia-cap2": (241, 2),
    }
    assert all(node.right for node in inventory.shared_nodes)
    assert inventory.gpus[0].memory_total == 143771 << 20


def test_index_is_not_minor(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    maker.add_gpu(0, 1, UUIDS[0])
    maker.add_gpu(1, 0, UUIDS[1])
    gpus = build_inventory(maker.host()).of("nvidia")
    assert [(gpu.index, gpu.minor, gpu.uuid) for gpu in gpus] == [(0, 1, UUIDS[0]), (1, 0, UUIDS[1])]
    assert [gpu.nodes[0].path for gpu in gpus] == ["/dev/nvidia1", "/dev/nvidia0"]


def test_pci_order_counts_in_hexadecimal(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    maker.add_gpu(0x1A, 2, "GPU-33333333-3333-3333-3333-333333333333")
    maker.add_gpu(0x0F, 3, "GPU-44444444-4444-4444-4444-444444444444")
    gpus = build_inventory(maker.host()).of("nvidia")
    assert [gpu.pci_address for gpu in gpus] == ["0000:00:00.0", "0000:01:00.0", "0000:0f:00.0", "0000:1a:00.0"]
    assert [gpu.index for gpu in gpus] == [0, 1, 2, 3]


def test_an_excluded_gpu_has_no_index_and_counts_for_none(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    path = "/proc/driver/nvidia/gpus/0000:00:00.0/information"
    maker.files[path] = str(maker.files[path]).replace("Excluded:\t No", "Excluded:\t Yes")
    gpus = build_inventory(maker.host()).gpus
    assert [gpu.index for gpu in gpus] == [None, 0]


def test_a_gpu_of_another_driver_is_listed_without_index(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    del maker.files["/proc/driver/nvidia/gpus/0000:01:00.0/information"]
    maker.nodes["/sys/bus/pci/devices/0000:01:00.0/driver"]["target"] = "../../../bus/pci/drivers/vfio-pci"
    inventory = build_inventory(maker.host())
    assert [(gpu.index, gpu.driver) for gpu in inventory.gpus] == [(0, "nvidia"), (None, "vfio-pci")]
    assert len(inventory.of("nvidia")) == 1


def test_a_node_with_the_wrong_major_is_seen(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    maker.add_node("/dev/nvidia-uvm", 510, 0)
    (uvm,) = (node for node in build_inventory(maker.host()).shared_nodes if node.role == "uvm")
    assert (uvm.major, uvm.minor) == (238, 0)
    assert uvm.actual is not None
    assert uvm.actual.major == 510
    assert not uvm.right


def test_uuid_falls_back_to_nvml_before_the_gpu_was_opened(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    path = "/proc/driver/nvidia/gpus/0000:00:00.0/information"
    maker.files[path] = str(maker.files[path]).replace(UUIDS[0], "GPU-????????-????-????-????-????????????")
    assert build_inventory(maker.host()).of("nvidia")[0].uuid is None
    maker.tools["nvml.json"] = {
        "driver_version": "580.159.04",
        "cuda_version": "13.0",
        "gpus": [{"index": 0, "uuid": UUIDS[0], "pci_bus_id": "00000000:00:00.0", "minor": 0}],
    }
    assert build_inventory(maker.host()).of("nvidia")[0].uuid == UUIDS[0]


def test_mig_devices_from_capabilities_and_nvml(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    base = "/proc/driver/nvidia/capabilities/gpu0/mig"
    maker.files[f"{base}/gi1/access"] = "DeviceFileMinor: 12\nDeviceFileMode: 292\nDeviceFileModify: 1\n"
    maker.files[f"{base}/gi1/ci0/access"] = "DeviceFileMinor: 13\nDeviceFileMode: 292\nDeviceFileModify: 1\n"
    maker.add_node("/dev/nvidia-caps/nvidia-cap12", 241, 12, "0444")
    uuid = "MIG-5555-5555"
    mig = {"uuid": uuid, "gpu_instance": 1, "compute_instance": 0, "profile": "1g.18gb"}
    gpu = {"index": 0, "pci_bus_id": "00000000:00:00.0", "mig_mode": "Enabled", "mig_devices": [mig]}
    maker.tools["nvml.json"] = {"driver_version": "580.159.04", "cuda_version": "13.0", "gpus": [gpu]}
    first = build_inventory(maker.host()).of("nvidia")[0]
    assert first.mig_enabled is True
    (device,) = first.mig_devices
    assert (device.uuid, device.gpu_instance, device.compute_instance, device.profile) == (uuid, 1, 0, "1g.18gb")
    assert [(node.path, node.right) for node in device.nodes] == [
        ("/dev/nvidia-caps/nvidia-cap12", True),
        ("/dev/nvidia-caps/nvidia-cap13", False),
    ]


def test_without_a_driver_there_are_no_gpus_and_no_nodes(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    maker.files = {"/proc/devices": "Character devices:\n  1 mem\n\nBlock devices:\n", "/proc/modules": "\n"}
    maker.nodes = {"/dev/null": {"path": "/dev/null", "type": "c", "major": 1, "minor": 3, "mode": "0666"}}
    inventory = build_inventory(maker.host())
    assert inventory.gpus == ()
    assert inventory.shared_nodes == ()
    assert inventory.driver_version is None
