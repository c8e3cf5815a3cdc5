# SPDX-License-Identifier: Apache-2.0
"""What keeps a process from its GPUs, and what is isolation that works."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuiso.devfilter.insn import pack
from gpuiso.doctor.engine import examine
from gpuiso.policy.rule import Rule
from tests.devfilter import layouts
from tests.doctor.findings import found, map_files, severities
from tests.records import UUIDS, RecordMaker

LIBCUDA = "/usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04"
GPU0, GPU1, CTL, UVM = (195, 0), (195, 1), (195, 255), (238, 0)
CONTAINER = "/docker/" + "0123456789abcdef" * 4


def process(maker: RecordMaker, env: dict[str, str] | None = None, *, mapped: bool = True, **others: object) -> None:
    maker.add_process(7, env, **others)  # type: ignore[arg-type]
    map_files(maker, 7, "/usr/bin/python3", *([LIBCUDA] if mapped else []))
    if not others.get("descriptors"):
        maker.nodes["/proc/7/fd/0"] = {"path": "/proc/7/fd/0", "type": "l", "target": "/dev/null"}


def deny(maker: RecordMaker, cgroup: str, *denied: tuple[int, int]) -> None:
    """Puts a program as runc lays them out on a cgroup: everything but ``denied`` is allowed."""
    rules = [Rule(True, "a", None, None, "rwm"), *(Rule(False, "c", *numbers, "rwm") for numbers in denied)]
    program = {"id": 9, "name": "", "tag": "0", "attach_flags": 2, "insns": pack(layouts.runc(rules)).hex()}
    maker.cgroups[cgroup] = {"device_programs": [program]}


def own_dev(*paths: str) -> dict[str, tuple[int, int]]:
    numbers = {"/dev/nvidia0": GPU0, "/dev/nvidia1": GPU1, "/dev/nvidiactl": CTL, "/dev/nvidia-uvm": UVM}
    return {"/dev/null": (1, 3), **{path: numbers[path] for path in paths}}


# Isolation that works


def test_a_container_with_one_of_two_gpus(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    nodes = own_dev("/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm")
    process(maker, {"NVIDIA_VISIBLE_DEVICES": UUIDS[1]}, own_dev=nodes)
    assert severities(maker) == []
    assert severities(maker, 7) == []


def test_a_job_with_one_of_two_gpus(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    process(maker, {"SLURM_JOB_ID": "5"}, descriptors=("/dev/nvidia0",))
    deny(maker, "/job", GPU1)
    assert severities(maker) == []
    assert severities(maker, 7) == [("GPU-CGV2-EBPF-DENY", "info")]


@pytest.mark.parametrize("value", ["", "-1", "NoDevFiles", "none", "void"])
def test_work_that_is_to_have_no_gpu(tmp_path: Path, value: str) -> None:
    maker = RecordMaker(tmp_path)
    process(maker, {"CUDA_VISIBLE_DEVICES": value}, own_dev=own_dev())
    assert {rule for rule, severity in severities(maker) if severity != "info"} == set()
    assert found(maker, "GPU-DEV-MISSING-NS") == []


def test_a_variable_that_nobody_reads(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    process(maker, {"CUDA_VISIBLE_DEVICES": "0"}, own_dev=own_dev(), mapped=False)
    assert severities(maker) == []


def test_an_image_for_cuda_that_was_given_no_gpu(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    process(maker, {"NVIDIA_VISIBLE_DEVICES": "all"}, own_dev=own_dev())
    assert severities(maker) == []


def test_a_container_for_monitoring_needs_no_uvm(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    nodes = own_dev("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl")
    process(maker, {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "utility"}, own_dev=nodes)
    assert found(maker, "GPU-UVM-MISSING", 7) == []


def test_the_graphics_of_the_cpu_are_not_meant(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    base = "/sys/bus/pci/devices/0000:00:02.0"
    for name, value in (("vendor", "0x8086"), ("device", "0xa780"), ("class", "0x030000")):
        maker.files[f"{base}/{name}"] = f"{value}\n"
    maker.files[f"{base}/drm/renderD128/dev"] = "226:128\n"
    maker.nodes[f"{base}/driver"] = {"path": f"{base}/driver", "type": "l", "target": "../../drivers/i915"}
    maker.add_node("/dev/dri/renderD128", 226, 128, "0660")
    maker.files["/proc/devices"] = str(maker.files["/proc/devices"]).replace("238", "226 drm\n238")
    process(maker, uid=1000)
    maker.nodes["/proc/7/root/dev/dri/renderD128"].update(mode="0660")
    assert severities(maker, 7) == []


# Faults


@pytest.mark.parametrize("pid", [7, None])
def test_every_gpu_denied_is_one_finding(tmp_path: Path, pid: int | None) -> None:
    maker = RecordMaker(tmp_path)
    process(maker, {"CUDA_VISIBLE_DEVICES": "0,1"})
    deny(maker, "/job", GPU0, GPU1, CTL, UVM)
    [finding] = found(maker, "GPU-CGV2-EBPF-DENY", pid)
    assert finding.severity == "error"
    assert finding.target.pid == 7
    assert finding.target.cgroup == "/job"
    assert "runc" in finding.cause
    assert "cuInit fails with 100" in finding.cause
    assert any("195:255" in evidence.says for evidence in finding.evidence)


def test_two_levels_that_deny_are_two_findings(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    process(maker, {"CUDA_VISIBLE_DEVICES": "0,1"}, cgroup="/a/b")
    deny(maker, "/a", UVM)
    deny(maker, "/a/b", CTL)
    assert {finding.target.cgroup for finding in found(maker, "GPU-CGV2-EBPF-DENY", 7)} == {"/a", "/a/b"}


def test_uvm_denied(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    process(maker)
    deny(maker, "/job", UVM)
    [finding] = found(maker, "GPU-CGV2-EBPF-DENY", 7)
    assert "cuInit fails with 999" in finding.cause


def test_what_is_held_goes_on_working(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    process(maker, {"NVIDIA_VISIBLE_DEVICES": "all"}, cgroup=CONTAINER, descriptors=("/dev/nvidia0", "/dev/nvidiactl"))
    deny(maker, CONTAINER, GPU0, GPU1, CTL, UVM)
    maker.cgroups["/docker"] = {"device_programs": []}
    [finding] = found(maker, "GPU-CGV2-EBPF-DENY")
    assert finding.severity == "warning"
    assert "still holds /dev/nvidia0, /dev/nvidiactl" in finding.cause
    assert finding.target.container == "0123456789abcdef" * 4


def test_workers_repeat_no_finding_of_their_parent(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    process(maker, {"CUDA_VISIBLE_DEVICES": "0,1"})
    deny(maker, "/job", CTL)
    maker.add_process(8, {"CUDA_VISIBLE_DEVICES": "0,1"})
    map_files(maker, 8, LIBCUDA)
    maker.files["/proc/8/status"] = str(maker.files["/proc/8/status"]).replace("PPid:\t1", "PPid:\t7")
    for pid in (7, 8):
        path = f"/proc/{pid}/ns/mnt"
        maker.nodes[path] = {"path": path, "type": "l", "target": "mnt:[4026531841]"}
        maker.nodes[f"/proc/{pid}/fd/0"] = {"path": f"/proc/{pid}/fd/0", "type": "l", "target": "/dev/null"}
    deny(maker, "/job", CTL)
    assert [finding.target.pid for finding in found(maker, "GPU-CGV2-EBPF-DENY")] == [7]


def test_a_node_missing_on_the_host_is_not_blamed_on_a_process(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    del maker.nodes["/dev/nvidia-uvm"]
    process(maker)
    assert severities(maker, 7) == [("GPU-UVM-MISSING", "error")]


def test_only_uvm_missing_in_a_private_dev(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    process(maker, own_dev=own_dev("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl"))
    [finding] = found(maker, "GPU-UVM-MISSING", 7)
    assert finding.target.pid == 7
    assert found(maker, "GPU-DEV-MISSING-NS", 7) == []


def test_numbers_of_another_boot_in_a_private_dev(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    nodes = own_dev("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl") | {"/dev/nvidia-uvm": (510, 0)}
    process(maker, own_dev=nodes)
    deny(maker, "/job", (510, 0))
    assert [rule for rule, severity in severities(maker, 7) if severity == "error"] == ["GPU-UVM-MAJOR-MISMATCH"]


def test_a_gpu_node_with_the_numbers_of_another(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    nodes = own_dev("/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm") | {"/dev/nvidia0": GPU1}
    process(maker, own_dev=nodes)
    [finding] = found(maker, "GPU-DEV-NUMBERS", 7)
    assert "c 195:1" in finding.cause


def test_nodev(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    process(maker)
    maker.files["/proc/7/mountinfo"] = (
        "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:6 /nvidiactl /dev/nvidiactl rw,nodev - devtmpfs udev rw\n"
    )
    [finding] = found(maker, "GPU-DEV-NODEV", 7)
    assert str(finding.fix[0].command).endswith("mount -o remount,bind,dev /dev/nvidiactl")


def test_a_mode_that_a_group_would_pass(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    maker.files["/proc/driver/nvidia/params"] = "ModifyDeviceFiles: 1\nDeviceFileGID: 44\nDeviceFileMode: 432\n"
    process(maker, uid=1000)
    for path in ("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm"):
        for place in (path, f"/proc/7/root{path}"):
            maker.nodes[place].update(mode="0660", gid=44)
    [finding] = found(maker, "GPU-DEV-MODE", 7)
    assert "getent group 44" in str(finding.fix[0].command)


def test_a_mode_told_for_the_host_is_not_told_again(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    process(maker, uid=1000)
    for place in ("/dev/nvidiactl", "/proc/7/root/dev/nvidiactl"):
        maker.nodes[place].update(mode="0600")
    [finding] = found(maker, "GPU-DEV-MODE", 7)
    assert finding.target.pid is None


def test_an_access_that_was_tried(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    process(maker)
    maker.cgroups["/job"] = {"device_programs": None}
    host = maker.write()
    nodes = ("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl")
    (host / "probes.json").write_text(json.dumps({"7": {node: {"rw": "EPERM"} for node in nodes}}))
    from gpuiso.host.recorded import RecordedHost

    findings = examine(RecordedHost(str(host)), pid=7).findings
    [finding] = [finding for finding in findings if finding.rule.id == "GPU-CGV2-EBPF-DENY"]
    assert finding.target.cgroup == "/job"
    assert all(node in finding.cause for node in nodes)


def test_filters_that_may_not_be_read_are_not_examined(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    process(maker)
    maker.cgroups["/job"] = {"device_programs": None}
    report = examine(maker.host(), pid=7)
    assert report.findings == ()
    assert any("GPU-CGV2-EBPF-DENY" in missing.rules for missing in report.not_examined)


def test_v1(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    process(maker)
    maker.files["/proc/7/cgroup"] = "3:devices:/job\n0::/job\n"
    maker.files["/sys/fs/cgroup/devices/job/devices.list"] = "c 1:3 rwm\nc 195:* m\nc 238:* rw\n"
    host = maker.write()
    record = json.loads((host / "record.json").read_text())
    (host / "record.json").write_text(json.dumps(record | {"cgroup_mode": "hybrid"}))
    from gpuiso.host.recorded import RecordedHost

    [finding] = examine(RecordedHost(str(host)), pid=7).findings
    assert finding.rule.id == "GPU-CGV1-DEVICES-DENY"
    assert "/dev/nvidia-uvm" not in finding.cause
    assert "echo c 195:255 rw > /sys/fs/cgroup/devices/job/devices.allow" in str(finding.fix[0].command)


def test_a_command_for_a_cgroup_of_any_name(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    process(maker, cgroup="/a $(reboot)")
    deny(maker, "/a $(reboot)", CTL)
    [finding] = found(maker, "GPU-CGV2-EBPF-DENY", 7)
    assert finding.fix[0].command == "sudo bpftool cgroup show '/sys/fs/cgroup/a $(reboot)'"
