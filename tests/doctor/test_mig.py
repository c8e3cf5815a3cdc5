# SPDX-License-Identifier: Apache-2.0
"""MIG devices that are missing, stale, too many, or behind closed nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.doctor.job import PID, Job, alarms
from tests.records import UUIDS

CVD = "CUDA_VISIBLE_DEVICES"
ONE, TWO, THREE = (f"MIG-{digit * 8}-0000-0000-0000-000000000000" for digit in "abc")
BASE = "/proc/driver/nvidia/capabilities/gpu0/mig"


class Partitioned(Job):
    """GPU 0 in MIG mode with instances 1/0 and 2/0, and 2/1 in the same GPU instance as 2/0."""

    def __init__(self, directory: Path, *devices: str, driver: str = "580.159.04", uuids: bool = True) -> None:
        super().__init__(directory)
        version = "/proc/driver/nvidia/version"
        self.files[version] = str(self.files[version]).replace("580.159.04", driver)
        self.nodes[BASE] = {"path": BASE, "type": "d"}
        places = {ONE: (1, 0), TWO: (2, 0), THREE: (2, 1)}
        migs: list[dict[str, Any]] = []
        for uuid in devices:
            gi, ci = places[uuid]
            for file, minor in ((f"gi{gi}/access", 10 * gi), (f"gi{gi}/ci{ci}/access", 10 * gi + ci + 1)):
                self.files[f"{BASE}/{file}"] = f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\n"
                self.add_node(f"/dev/nvidia-caps/nvidia-cap{minor}", 241, minor, "0444")
            migs.append({"uuid": uuid if uuids else None, "gpu_instance": gi, "compute_instance": ci})
        gpus = [
            {
                "index": index,
                "uuid": uuid,
                "pci_bus_id": f"00000000:{index:02x}:00.0",
                "mig_mode": "Disabled" if index else "Enabled",
                "mig_devices": [] if index else migs,
            }
            for index, uuid in enumerate(UUIDS)
        ]
        self.tools["nvml.json"] = {"driver_version": driver, "gpus": gpus}


def mig_rules(job: Job, value: str | None, *, asked: bool = True, uid: int = 1000) -> dict[str, str]:
    job.add(PID, {} if value is None else {CVD: value}, uid=uid)
    return alarms(job.rules("GPU-CVD-", "GPU-MIG-", "GPU-UUID-", asked=asked))


def test_mig_mode_without_devices(tmp_path: Path) -> None:
    job = Partitioned(tmp_path)
    assert mig_rules(job, ONE) == {"GPU-MIG-NOINSTANCE": "warning"}, "the cause, and not its effect as well"
    (finding,) = (f for f in job.findings() if f.rule.id == "GPU-MIG-NOINSTANCE")
    assert finding.target.gpu == UUIDS[0]


def test_a_gpu_instance_without_compute_instance(tmp_path: Path) -> None:
    job = Partitioned(tmp_path)
    job.files[f"{BASE}/gi3/access"] = "DeviceFileMinor: 30\nDeviceFileMode: 292\n"
    job.add(PID, {})
    (finding,) = (f for f in job.findings() if f.rule.id == "GPU-MIG-NOINSTANCE")
    assert finding.fix[0].command == "sudo nvidia-smi mig -i 0 -gi 3 -cci"


@pytest.mark.parametrize(
    ("value", "driver", "expected"),
    [
        (ONE, "580.1", {}),
        (f"{ONE},{TWO}", "580.1", {}),
        (f"{ONE},{TWO}", "535.1", {"GPU-MIG-SINGLE": "warning"}),
        (f"{TWO},{THREE}", "580.1", {"GPU-MIG-SINGLE": "warning"}),
        ("MIG-dddddddd-0000-0000-0000-000000000000", "580.1", {"GPU-MIG-STALE-UUID": "error"}),
        (f"{ONE},MIG-dddddddd-0000-0000-0000-000000000000", "580.1", {"GPU-MIG-STALE-UUID": "warning"}),
        (f"MIG-{UUIDS[0]}/1/0", "580.1", {}),
        (f"MIG-{UUIDS[0]}/7/0", "580.1", {"GPU-MIG-STALE-UUID": "error"}),
        (None, "580.1", {}),
        (UUIDS[1], "580.1", {}),
    ],
)
def test_names_of_mig_devices(tmp_path: Path, value: str | None, driver: str, expected: dict[str, str]) -> None:
    assert mig_rules(Partitioned(tmp_path, ONE, TWO, THREE, driver=driver), value) == expected


def test_without_nvml_no_uuid_is_stale(tmp_path: Path) -> None:
    assert mig_rules(Partitioned(tmp_path, ONE, uuids=False), TWO) == {}


def test_capability_nodes(tmp_path: Path) -> None:
    def without(directory: str, name: str, value: str | None, *, uid: int = 1000) -> dict[str, str]:
        job = Partitioned(tmp_path / directory, ONE, TWO)
        job.add(PID, {} if value is None else {CVD: value}, uid=uid)
        del job.nodes[f"/proc/{PID}/root/dev/nvidia-caps/{name}"]
        return alarms(job.rules("GPU-MIG-"))

    assert without("a", "nvidia-cap11", ONE) == {"GPU-MIG-CAPS": "error"}
    assert without("b", "nvidia-cap10", ONE) == {"GPU-MIG-CAPS": "error"}
    assert without("c", "nvidia-cap20", ONE) == {}, "another device's node"
    assert without("d", "nvidia-cap10", None) == {}, "a container may have been given the other device alone"
    assert without("e", "nvidia-cap10", ONE, uid=0) == {}, "CAP_SYS_ADMIN needs no node"
