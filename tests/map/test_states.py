# SPDX-License-Identifier: Apache-2.0
"""What each cell of the map says, from records."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuiso.doctor.map import build_map
from tests.map.hosts import MapMaker, cell, states, workload
from tests.records import UUIDS


@pytest.fixture
def maker(tmp_path: Path) -> MapMaker:
    return MapMaker(tmp_path / "host")


def test_two_processes_on_a_gpu_each(maker: MapMaker) -> None:
    maker.container(10, "one", {"NVIDIA_VISIBLE_DEVICES": UUIDS[0]}, gpus=[0], holds=("/dev/nvidia0",))
    maker.container(11, "two", {"NVIDIA_VISIBLE_DEVICES": UUIDS[1]}, gpus=[1], holds=("/dev/nvidia1",) * 2)
    maker.nvml({10: 512}, {11: 1024})
    found = build_map(maker.host())
    assert states(found) == {"one": ("use", "closed"), "two": ("closed", "use")}
    assert not found.bad
    assert [c.memory for c in workload(found, "two").cells] == [0, 1024 << 20]
    assert [c.open for c in workload(found, "two").cells] == [0, 2]
    assert [c.selected for c in workload(found, "two").cells] == [False, True]
    assert [c.may_open for c in workload(found, "two").cells] == ["deny", "allow"]


def test_a_privileged_container_that_selects_one(maker: MapMaker) -> None:
    maker.container(10, "notebook", {"NVIDIA_VISIBLE_DEVICES": "1"}, gpus=[0, 1])
    found = build_map(maker.host())
    assert states(found) == {"notebook": ("leak", "ready")}
    assert found.bad
    assert cell(found, "notebook", 0).says == "it may be opened, though NVIDIA_VISIBLE_DEVICES=1 selects GPU 1"


def test_a_gpu_that_a_reload_took(maker: MapMaker) -> None:
    maker.container(10, "lost", {"NVIDIA_VISIBLE_DEVICES": "1"}, gpus=[1], allowed=[], holds=("/dev/nvidia1",))
    found = build_map(maker.host())
    assert states(found) == {"lost": ("closed", "lost")}
    lost = cell(found, "lost", 1)
    assert lost.open == 1
    assert lost.gate is not None
    assert (lost.gate.gate, lost.gate.by) == ("cgroup-v2", "runc")
    assert lost.gate.where == workload(found, "lost").cgroup


def test_a_gpu_that_was_given_by_its_node_alone(maker: MapMaker) -> None:
    maker.container(10, "cdi", gpus=[1], allowed=[])
    assert states(build_map(maker.host())) == {"cdi": ("closed", "lost")}
    maker.container(10, "cdi", gpus=[0, 1], allowed=[0])
    lost = cell(build_map(maker.host()), "cdi", 1)
    assert lost.state == "lost"
    assert lost.says is not None
    assert lost.says.startswith("its node is in the container's /dev, but the device filter of")


def test_workers_that_share_out_what_their_container_was_given(tmp_path: Path) -> None:
    maker = MapMaker(tmp_path, gpus=4)
    for pid, env in ((10, {}), (11, {"CUDA_VISIBLE_DEVICES": "0"}), (12, {"CUDA_VISIBLE_DEVICES": "1"})):
        maker.container(pid, "workers", env, gpus=[1, 2])
    assert states(build_map(maker.host())) == {"workers": ("closed", "ready", "ready", "closed")}
    maker.container(12, "workers", {"CUDA_VISIBLE_DEVICES": "0"}, gpus=[1, 2])
    assert states(build_map(maker.host())) == {"workers": ("closed", "ready", "may", "closed")}


def test_an_index_counts_what_is_in_the_containers_dev(tmp_path: Path) -> None:
    maker = MapMaker(tmp_path, gpus=4)
    maker.container(10, "third", {"CUDA_VISIBLE_DEVICES": "0"}, gpus=[2])
    assert states(build_map(maker.host())) == {"third": ("closed", "closed", "ready", "closed")}


def test_a_service_that_lost_and_leaks(maker: MapMaker) -> None:
    maker.process(10, {"CUDA_VISIBLE_DEVICES": UUIDS[1]}, cgroup="/system.slice/train.service")
    maker.cgroups["/system.slice/train.service"] = {"device_programs": [maker.program([0])]}
    found = build_map(maker.host())
    assert states(found) == {"train.service": ("leak", "lost")}
    assert found.counts["leak"] == found.counts["lost"] == 1


def test_what_is_open_stays_open(maker: MapMaker) -> None:
    maker.process(10, cgroup="/system.slice/old.service", holds=("/dev/nvidia0",))
    maker.cgroups["/system.slice/old.service"] = {"device_programs": [maker.program([])]}
    kept = cell(build_map(maker.host()), "old.service", 0)
    assert (kept.state, kept.may_open, kept.open) == ("kept", "deny", 1)


def test_a_shared_node_takes_every_gpu(maker: MapMaker) -> None:
    maker.process(10, {"CUDA_VISIBLE_DEVICES": "0"}, cgroup="/system.slice/gap.service", uid=1000)
    maker.add_node("/proc/10/root/dev/nvidia-uvm", 238, 0, "0600")
    found = build_map(maker.host())
    assert [c.state for c in workload(found, "gap.service").cells] == ["lost", "leak"]
    (sentence,) = workload(found, "gap.service").closed
    assert sentence.startswith("/dev/nvidia-uvm may not be opened: mode at ")


def test_a_shell_beside_its_job_selects_nothing(maker: MapMaker) -> None:
    unit = "/system.slice/run.service"
    maker.process(10, cgroup=unit)
    maker.process(11, {"CUDA_VISIBLE_DEVICES": "1"}, cgroup=unit, holds=("/dev/nvidia1",))
    assert states(build_map(maker.host())) == {"run.service": ("leak", "use")}
    maker.process(12, cgroup=unit, holds=("/dev/nvidia0",))
    assert states(build_map(maker.host())) == {"run.service": ("use", "use")}, "one of them takes whatever there is"


def test_filters_that_may_not_be_asked_for(maker: MapMaker) -> None:
    maker.process(10, {"CUDA_VISIBLE_DEVICES": "0"}, cgroup="/system.slice/a.service")
    maker.cgroups["/system.slice/a.service"] = {"device_programs": None}
    found = build_map(maker.host())
    assert states(found) == {"a.service": ("unknown", "unknown")}
    assert "not permitted" in (cell(found, "a.service", 0).says or "")


def test_an_environment_that_may_not_be_read(maker: MapMaker) -> None:
    maker.process(10, cgroup="/system.slice/a.service", holds=("/dev/nvidia0",))
    maker.files["/proc/10/environ"] = None
    found = build_map(maker.host())
    assert states(found) == {"a.service": ("use", "may")}
    assert [entry.what for entry in found.not_examined if "environment" in entry.what] == [
        "the environment of 1 of 1 processes"
    ]


def test_nothing_is_known_of_memory_without_nvml(maker: MapMaker) -> None:
    maker.process(10, cgroup="/system.slice/a.service", holds=("/dev/nvidia0",))
    found = build_map(maker.host())
    assert cell(found, "a.service", 0).memory is None
    assert "NVML" in [entry.what for entry in found.not_examined]


def test_who_does_not_touch_gpus_is_left_out(maker: MapMaker) -> None:
    maker.process(10, cgroup="/system.slice/sshd.service")
    maker.process(11, cgroup="/system.slice/closed.service")
    maker.cgroups["/system.slice/closed.service"] = {"device_programs": [maker.program([])]}
    maker.process(12, cgroup="/system.slice/allowed.service")
    maker.cgroups["/system.slice/allowed.service"] = {"device_programs": [maker.program([1])]}
    maker.process(13)
    maker.container(14, "web")
    found = build_map(maker.host())
    assert states(found) == {"allowed.service": ("closed", "may")}
    assert found.left_out == 4
    everyone = build_map(maker.host(), every=True)
    assert len(everyone.workloads) == 5
    assert everyone.left_out == 0


def test_what_stands_out_comes_first(maker: MapMaker) -> None:
    maker.container(10, "a", {"NVIDIA_VISIBLE_DEVICES": "0"}, gpus=[0], holds=("/dev/nvidia0",))
    maker.container(11, "z", {"NVIDIA_VISIBLE_DEVICES": "0"}, gpus=[0, 1])
    maker.container(12, "x", {"NVIDIA_VISIBLE_DEVICES": "1"}, gpus=[1], allowed=[])
    assert list(states(build_map(maker.host()))) == ["x", "z", "a"]


def test_a_host_without_gpus(maker: MapMaker) -> None:
    for path in list(maker.files):
        if path.startswith(("/proc/driver/nvidia/gpus", "/sys/bus/pci")):
            del maker.files[path]
    maker.process(10, {"CUDA_VISIBLE_DEVICES": "0"})
    found = build_map(maker.host())
    assert (found.columns, found.workloads, found.bad) == ((), (), False)


def test_mig_devices_stand_for_their_gpu() -> None:
    from gpuiso.host import open_host
    from tests.support import REPOSITORY

    found = build_map(open_host(str(REPOSITORY / "tests/data/hosts/mig-single/healthy")))
    assert [column.label for column in found.columns] == ["GPU 0 MIG 1/0", "GPU 0 MIG 2/0", "GPU 1"]
    (one,) = found.workloads
    assert {c.may_open for c in one.cells} == {"allow"}
    assert "lost" not in {c.state for c in one.cells}
    selected = [
        column.mig.uuid for column, c in zip(found.columns, one.cells, strict=True) if c.selected and column.mig
    ]
    assert len(selected) == 1
    assert ("CUDA_VISIBLE_DEVICES", selected[0]) in one.variables


def test_capability_nodes_are_opened_for_reading(tmp_path: Path) -> None:
    maker = MapMaker(tmp_path)
    base = "/proc/driver/nvidia/capabilities/gpu0/mig/gi1"
    maker.files[f"{base}/access"] = "DeviceFileMinor: 12\nDeviceFileMode: 292\n"
    maker.files[f"{base}/ci0/access"] = "DeviceFileMinor: 13\nDeviceFileMode: 292\n"
    maker.add_node("/dev/nvidia-caps/nvidia-cap12", 241, 12, "0444")
    maker.add_node("/dev/nvidia-caps/nvidia-cap13", 241, 13, "0444")
    maker.nvml({}, {})
    gpu = maker.tools["nvml.json"]["gpus"][0]
    uuid = "MIG-11111111-2222-3333-4444-555555555555"
    gpu["mig_mode"] = "Enabled"
    gpu["mig_devices"] = [{"uuid": uuid, "gpu_instance": 1, "compute_instance": 0, "profile": "1g.18gb"}]
    gpu["processes"] = [{"pid": 10, "type": "C", "used_memory_mib": 700}]
    maker.process(10, {"CUDA_VISIBLE_DEVICES": uuid}, cgroup="/system.slice/mig.service", uid=1000)
    for cap in (12, 13):
        maker.add_node(f"/proc/10/root/dev/nvidia-caps/nvidia-cap{cap}", 241, cap, "0444")
    found = build_map(maker.host())
    assert [column.label for column in found.columns] == ["GPU 0 MIG 1/0", "GPU 1"]
    assert states(found) == {"mig.service": ("use", "leak")}
    assert cell(found, "mig.service", 0).memory == 700 << 20
    maker.add_node("/proc/10/root/dev/nvidia-caps/nvidia-cap13", 241, 13, "0400")
    lost = cell(build_map(maker.host()), "mig.service", 0)
    assert lost.state == "lost"
    assert "/dev/nvidia-caps/nvidia-cap13" in (lost.says or "")
