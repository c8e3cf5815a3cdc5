# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

from gpuiso.gpu.inventory import build_inventory
from tests.records import RecordMaker


def drm_host(directory: Path, vendor: str, driver: str) -> RecordMaker:
    maker = RecordMaker(directory)
    maker.nodes = {}
    maker.files = {
        "/proc/devices": "Character devices:\n  1 mem\n226 drm\n234 kfd\n\nBlock devices:\n",
        "/proc/modules": f"{driver} 1 0 - Live 0x0\n",
    }
    for index in range(2):
        base = f"/sys/bus/pci/devices/0000:0{index + 3}:00.0"
        maker.files[f"{base}/vendor"] = f"{vendor}\n"
        maker.files[f"{base}/class"] = "0x038000\n"
        maker.files[f"{base}/drm/renderD{128 + index}/dev"] = f"226:{128 + index}\n"
        maker.nodes[f"{base}/driver"] = {"path": f"{base}/driver", "type": "l", "target": f"../{driver}"}
        maker.add_node(f"/dev/dri/renderD{128 + index}", 226, 128 + index, "0660")
    return maker


def test_amd(tmp_path: Path) -> None:
    maker = drm_host(tmp_path, "0x1002", "amdgpu")
    maker.add_node("/dev/kfd", 234, 0, "0660")
    maker.files["/sys/class/kfd/kfd/topology/nodes/1/properties"] = (
        "unique_id 1234567890123456789\ndrm_render_minor 128\n"
    )
    inventory = build_inventory(maker.host())
    assert [(gpu.vendor, gpu.index, gpu.minor) for gpu in inventory.gpus] == [("amd", 0, 128), ("amd", 1, 129)]
    assert inventory.gpus[0].uuid == f"GPU-{1234567890123456789:016x}"
    assert [node.path for node in inventory.shared_nodes] == ["/dev/kfd"]
    assert all(node.right for gpu in inventory.gpus for node in gpu.nodes)


def test_intel(tmp_path: Path) -> None:
    maker = drm_host(tmp_path, "0x8086", "xe")
    del maker.nodes["/dev/dri/renderD129"]
    inventory = build_inventory(maker.host())
    assert [(gpu.vendor, gpu.index) for gpu in inventory.gpus] == [("intel", 0), ("intel", 1)]
    assert [gpu.nodes[0].right for gpu in inventory.gpus] == [True, False]
