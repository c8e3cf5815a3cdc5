# SPDX-License-Identifier: Apache-2.0
"""The doctor on a real host: silent while it is healthy, and every planted fault found with its rule."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuiso.doctor.engine import examine
from gpuiso.gpu.model import Inventory
from gpuiso.host import open_host
from gpuiso.host.live import LiveHost
from gpuiso.host.record import write_record
from gpuiso.host.recorder import Recorder
from tests.gpu.place import nobody, own_dev, process
from tests.tiers import requires

pytestmark = requires("gpu")

Property = Callable[[str, object], None]


def rules(pid: int) -> dict[str, str]:
    """What the doctor finds wrong with a process: rule and severity, information left out."""
    report = examine(LiveHost(), pid=pid)
    return {f.rule.id: f.severity for f in report.findings if f.severity != "info"}


def test_the_host_is_healthy(record_property: Property) -> None:
    report = examine(LiveHost())
    record_property("note", f"{len(report.machine.nvidia)} GPUs, driver {report.machine.inventory.driver_version}")
    assert [(f.rule.id, f.cause) for f in report.findings if f.severity != "info"] == []
    assert report.machine.nvidia
    assert all(node.right for node in report.machine.nvidia_nodes)


def test_a_healthy_process(inventory: Inventory) -> None:
    with process({"CUDA_VISIBLE_DEVICES": str(inventory.of("nvidia")[0].uuid)}) as pid:
        assert rules(pid) == {}


def test_a_healthy_process_of_an_ordinary_user() -> None:
    with process({"CUDA_VISIBLE_DEVICES": "0"}, nobody) as pid:
        assert rules(pid) == {}


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("CUDA_VISIBLE_DEVICES", "0,0", "GPU-CVD-DUP"),
        ("CUDA_VISIBLE_DEVICES", "", "GPU-CVD-EMPTY"),
        ("CUDA_VISIBLE_DEVICES", "99", "GPU-CVD-OOR"),
        ("CUDA_VISIBLE_DEVICES", "-1", "GPU-CVD-NEGATIVE"),
        ("CUDA_VISIBLE_DEVICES", "all", "GPU-CVD-BADTOKEN"),
        ("CUDA_VISABLE_DEVICES", "0", "GPU-CVD-TYPO"),
        ("CUDA_VISIBLE_DEVICES", "GPU-00000000-0000-0000-0000-000000000000", "GPU-UUID-STALE"),
        ("CUDA_DEVICE_ORDER", "pci_bus_id", "GPU-CVD-ORDER"),
    ],
)
def test_a_variable(name: str, value: str, rule: str) -> None:
    with process({name: value}) as pid:
        assert set(rules(pid)) == {rule}


def test_a_denied_gpu_and_an_index(two_gpus: Inventory, record_property: Property) -> None:
    first = two_gpus.of("nvidia")[0].nodes[0].path
    with process({"CUDA_VISIBLE_DEVICES": "0"}, denied=[first]) as pid:
        found = rules(pid)
    record_property("note", ", ".join(sorted(found)))
    assert "GPU-CVD-REINDEX" in found


def test_the_control_node_is_denied(record_property: Property) -> None:
    with process(denied=["/dev/nvidiactl"]) as pid:
        found = rules(pid)
    record_property("note", ", ".join(sorted(found)))
    assert "GPU-CGV2-EBPF-DENY" in found


@pytest.mark.parametrize(
    ("name", "rule"),
    [("major", "GPU-UVM-MAJOR-MISMATCH"), ("missing", "GPU-UVM-MISSING"), ("mode", "GPU-DEV-MODE")],
)
def test_a_node_of_a_private_dev(name: str, rule: str, record_property: Property) -> None:
    def change(dev: Path) -> None:
        if name == "mode":
            (dev / "nvidia0").chmod(0o600)
            return
        (dev / "nvidia-uvm").unlink()
        if name == "major":
            os.mknod(dev / "nvidia-uvm", 0o20666, os.makedev(511, 0))
            (dev / "nvidia-uvm").chmod(0o666)

    def prepare() -> None:
        own_dev(change)()
        if name == "mode":
            nobody()

    with process(prepare=prepare) as pid:
        found = rules(pid)
    record_property("note", ", ".join(sorted(found)))
    assert rule in found


def test_a_record_gives_the_same_findings(tmp_path: Path, record_property: Property) -> None:
    destination = tmp_path / "host.tar.gz"
    with process({"CUDA_VISIBLE_DEVICES": "0,0"}) as pid:
        recorder = Recorder(LiveHost())
        live = examine(recorder)
        summary = write_record(recorder, str(destination), pids=live.processes)
        assert pid in live.processes
    again = examine(open_host(str(destination)))
    record_property("note", f"{summary.files} files, {destination.stat().st_size >> 10} KiB")
    assert [(f.rule.id, f.severity, f.target.pid) for f in again.findings] == [
        (f.rule.id, f.severity, f.target.pid) for f in live.findings
    ]
    assert live.bad
