# SPDX-License-Identifier: Apache-2.0
"""Health of a host: what is told from logs, NVML, PCI and /proc, and above all when nothing is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuiso.doctor.checks.hanging_driver import hanging
from gpuiso.doctor.engine import examine
from gpuiso.doctor.finding import Finding
from gpuiso.doctor.machine import Machine
from gpuiso.host.recorded import RecordedHost
from tests.doctor.findings import found, severities
from tests.records import UUIDS, RecordMaker

ADDRESSES = ("0000:00:00.0", "0000:01:00.0")
LOADED = "[ 10.0] nvidia-nvlink: Nvlink Core is being initialized, major device number 240"
DAY = 86400


def nvml(*changes: dict[str, Any]) -> dict[str, Any]:
    gpus = []
    for index, uuid in enumerate(UUIDS):
        gpu = {
            "index": index,
            "uuid": uuid,
            "name": "NVIDIA H200",
            "pci_bus_id": f"0000{ADDRESSES[index]}",
            "minor": index,
            "memory_total_mib": 143771,
            "memory_used_mib": 0,
            "mig_mode": "Disabled",
            "compute_mode": "Default",
            "persistence_mode": "Enabled",
            "processes": [],
        }
        change = changes[index] if index < len(changes) else {}
        gpus.append({"index": index, **change} if "error" in change else gpu | change)
    return {"driver_version": "580.159.04", "cuda_version": "13.0", "gpus": gpus}


def used_by(pid: int, mib: int | None, **more: Any) -> dict[str, Any]:
    return {"processes": [{"pid": pid, "type": "C", "used_memory_mib": mib}], **more}


@pytest.fixture
def maker(tmp_path: Path) -> RecordMaker:
    """A host in order, up for 20 days, seen from its own pid namespace."""
    made = RecordMaker(tmp_path)
    made.files["/proc/uptime"] = f"{20 * DAY}.0 1.0\n"
    made.files["/proc/2/comm"] = "kthreadd\n"
    made.tools["nvml.json"] = nvml()
    made.tools["dmesg.txt"] = LOADED + "\n"
    return made


def log(maker: RecordMaker, *lines: str) -> None:
    maker.tools["dmesg.txt"] = "\n".join((LOADED, *lines)) + "\n"


def xid(number: int, at: float, rest: str = "pid=811, name=train", gpu: int = 1) -> str:
    return f"[{at:.6f}] NVRM: Xid (PCI:{ADDRESSES[gpu][:-2]}): {number}, {rest}"


def sleeper(maker: RecordMaker, pid: int, comm: str, place: str, *, ppid: int = 1, started: float = 100.0) -> None:
    """A process in state D that waits in the function ``place``."""
    maker.add_process(pid)
    maker.files[f"/proc/{pid}/stat"] = f"{pid} ({comm}) D {ppid} {' '.join(['0'] * 17)} {int(started * 100)} 0 0\n"
    status = str(maker.files[f"/proc/{pid}/status"])
    maker.files[f"/proc/{pid}/status"] = status.replace("PPid:\t1", f"PPid:\t{ppid}").replace("S (sl", "D (sl")
    maker.files[f"/proc/{pid}/comm"] = f"{comm}\n"
    maker.files[f"/proc/{pid}/wchan"] = place


def one(maker: RecordMaker, rule: str, pid: int | None = None) -> Finding:
    (finding,) = found(maker, rule, pid)
    return finding


def test_a_host_in_order(maker: RecordMaker) -> None:
    assert severities(maker) == []


# Xid


def test_repeated_xids_are_one_finding(maker: RecordMaker) -> None:
    log(maker, *(xid(119, 1000 + second) for second in range(0, 90_000, 3_000)))
    finding = one(maker, "GPU-XID")
    assert finding.severity == "error"
    assert "30 times, first 16 min 40 s and last 1 d 0 h after boot (18 d 23 h ago)" in finding.cause
    assert "RESET_GPU" in finding.cause
    assert finding.target.gpu == UUIDS[1]
    assert any(fix.command == f"sudo nvidia-smi --gpu-reset -i {UUIDS[1]}" for fix in finding.fix)


def test_each_gpu_and_number_has_its_own(maker: RecordMaker) -> None:
    log(maker, xid(31, 1000), xid(31, 1001, gpu=0), xid(13, 1002), xid(31, 1003))
    assert sorted((f.target.gpu, f.title) for f in found(maker, "GPU-XID")) == [
        (UUIDS[0], "Xid 31: GPU memory page fault"),
        (UUIDS[1], "Xid 13: graphics engine exception"),
        (UUIDS[1], "Xid 31: GPU memory page fault"),
    ]


@pytest.mark.parametrize(
    "later",
    [
        LOADED.replace("10.0", "2000.0"),
        "[2000.0] pci 0000:01:00.0: [10de:2335] type 00 class 0x030200 PCIe Endpoint",
        xid(154, 2000, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"),
    ],
)
def test_what_ends_an_xid(maker: RecordMaker, later: str) -> None:
    log(maker, xid(119, 1000), later)
    assert severities(maker) == [("GPU-XID", "info")]


@pytest.mark.parametrize(
    "later",
    [
        "[2000.0] pci 0000:00:00.0: [10de:2335] type 00 class 0x030200 PCIe Endpoint",
        xid(154, 2000, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)", gpu=0),
        "[2000.0] NVRM: Persistence mode is deprecated and will be removed in a future release.",
    ],
)
def test_what_does_not_end_it(maker: RecordMaker, later: str) -> None:
    log(maker, xid(119, 1000), later)
    assert severities(maker) == [("GPU-XID", "error")]


def test_the_driver_wants_nothing_done(maker: RecordMaker) -> None:
    maker.tools["nvml.json"] = nvml({}, {"recovery_action": 0})
    log(maker, xid(119, 1000))
    assert severities(maker) == [("GPU-XID", "info")]


def test_that_word_is_not_taken_for_an_xid_of_just_now(maker: RecordMaker) -> None:
    maker.tools["nvml.json"] = nvml({}, {"recovery_action": 0})
    log(maker, xid(119, 20 * DAY - 60))
    assert severities(maker) == [("GPU-XID", "error")]


def test_xid_154_alone_and_taken_back(maker: RecordMaker) -> None:
    wanted = xid(154, 1000, "GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)")
    log(maker, wanted)
    assert severities(maker) == [("GPU-XID", "warning")]
    log(maker, wanted, xid(154, 2000, "GPU recovery action changed from 0x4 (Drain and Reset) to 0x0 (None)"))
    assert severities(maker) == []


def test_xid_154_beside_its_cause_is_no_second_finding(maker: RecordMaker) -> None:
    log(
        maker, xid(95, 999), xid(154, 1000, "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)")
    )
    finding = one(maker, "GPU-XID")
    assert "asks for a reboot of this node" in finding.cause
    assert [fix.command for fix in finding.fix] == ["sudo systemctl reboot"]


@pytest.mark.parametrize(
    ("rest", "severity"),
    [
        ("NETIR_LINK_EVT Fatal XC0 i0 Link 04 (0x004c5d83)", "error"),
        ("NETIR_LINK_EVT Nonfatal XC1 i0 Link 04 (0x004c5d83)", "info"),
        ("NETIR_LINK_EVT Link 04", "warning"),
    ],
)
def test_errors_of_nvlink_5_say_themselves_how_bad(maker: RecordMaker, rest: str, severity: str) -> None:
    log(maker, xid(149, 1000, rest))
    assert severities(maker) == [("GPU-XID", severity)]


def test_an_xid_of_no_gpu_of_this_host(maker: RecordMaker) -> None:
    log(maker, "[5.0] NVRM: Xid (PCI:0000:ff:00): 62, pid=1, name=x")
    finding = one(maker, "GPU-XID")
    assert "The GPU at 0000:ff:00.0" in finding.cause
    assert finding.target.gpu == "0000:ff:00.0"


def test_a_log_that_may_not_be_read(maker: RecordMaker) -> None:
    del maker.tools["dmesg.txt"]
    report = examine(maker.host())
    assert report.findings == ()
    missing = {rule for entry in report.not_examined if entry.what == "kernel log" for rule in entry.rules}
    assert {"GPU-BUS-LOST", "GPU-PCI-REGION", "GPU-RM-INIT", "GPU-SXID", "GPU-UPTIME-HANG", "GPU-XID"} <= missing


# Lost GPUs


def test_nvml_alone_tells_of_a_lost_gpu(maker: RecordMaker) -> None:
    del maker.tools["dmesg.txt"]
    maker.tools["nvml.json"] = nvml({}, {"error": "GPU is lost"})
    finding = one(maker, "GPU-BUS-LOST")
    assert (finding.severity, finding.target.gpu) == ("error", UUIDS[1])


def test_a_node_that_may_not_be_opened_is_no_lost_gpu(maker: RecordMaker) -> None:
    maker.tools["nvml.json"] = nvml({}, {"error": "Insufficient Permissions"})
    assert severities(maker) == []


def test_a_gpu_that_came_back_without_a_reset(maker: RecordMaker) -> None:
    log(maker, xid(79, 1000, "GPU has fallen off the bus."))
    assert severities(maker) == [("GPU-BUS-LOST", "warning")]


def test_a_gpu_that_was_found_anew(maker: RecordMaker) -> None:
    log(
        maker,
        xid(79, 1000, "GPU has fallen off the bus."),
        "[2000.0] pci 0000:01:00.0: [10de:2335] type 00 class 0x030200 PCIe Endpoint",
    )
    assert severities(maker) == [("GPU-BUS-LOST", "info")]


def test_what_a_lost_gpu_reports_besides_is_no_second_error(maker: RecordMaker) -> None:
    maker.tools["nvml.json"] = nvml({}, {"error": "GPU is lost"})
    log(
        maker,
        xid(79, 1000, "GPU has fallen off the bus."),
        xid(119, 1045),
        xid(154, 1046, "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"),
    )
    assert severities(maker) == [("GPU-BUS-LOST", "error"), ("GPU-XID", "info")]


def test_a_sleeping_gpu_is_not_woken_for_its_configuration(maker: RecordMaker) -> None:
    base = maker.directory / f"root/sys/bus/pci/devices/{ADDRESSES[1]}"
    base.mkdir(parents=True)
    (base / "config").write_bytes(b"\xff" * 64)
    assert severities(maker) == [("GPU-BUS-LOST", "error")]
    maker.files[f"/sys/bus/pci/devices/{ADDRESSES[1]}/power/runtime_status"] = "suspended\n"
    assert severities(maker) == []


def test_nvml_wants_a_reset(maker: RecordMaker) -> None:
    maker.tools["nvml.json"] = nvml({"error": "GPU requires reset"})
    assert one(maker, "GPU-RECOVERY-ACTION").target.gpu == UUIDS[0]


@pytest.mark.parametrize(
    ("action", "severity"), [(1, "error"), (2, "error"), (3, "warning"), (4, "warning"), (6, "error")]
)
def test_recovery_actions(maker: RecordMaker, action: int, severity: str) -> None:
    maker.tools["nvml.json"] = nvml({"recovery_action": action})
    assert severities(maker) == [("GPU-RECOVERY-ACTION", severity)]


# RmInitAdapter

FAILED = "NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x26:0x56:1463)"


def test_a_gpu_that_was_initialised_later(maker: RecordMaker) -> None:
    log(maker, f"[20.0] {FAILED}")
    assert severities(maker) == [("GPU-RM-INIT", "info")]


def test_a_lost_gpu_that_cannot_be_initialised_is_a_lost_gpu(maker: RecordMaker) -> None:
    maker.tools["nvml.json"] = nvml({}, {"error": "GPU is lost"})
    log(maker, xid(79, 1000, "GPU has fallen off the bus."), f"[1020.0] {FAILED}")
    assert severities(maker) == [("GPU-BUS-LOST", "error")]


# Hangs


def test_ordinary_waits_are_silent(maker: RecordMaker) -> None:
    sleeper(maker, 900, "train", "nvme_wait_freeze")
    sleeper(maker, 901, "train", "folio_wait_bit_common")
    sleeper(maker, 902, "nvidia-modeset/", "os_acquire_semaphore", ppid=2)
    del maker.files["/proc/902/wchan"]
    sleeper(maker, 903, "nvidia-smi", "os_acquire_mutex", started=20 * DAY - 5)
    assert severities(maker) == []


def test_a_process_asleep_in_the_driver(maker: RecordMaker) -> None:
    sleeper(maker, 900, "train", "os_acquire_rwlock_read")
    finding = one(maker, "GPU-HANG-DSTATE")
    assert (finding.severity, finding.target.pid) == ("warning", 900)


def test_many_processes_are_one_finding(maker: RecordMaker) -> None:
    maker.tools["nvml.json"] = {"error": "no answer within 3 s: the driver may hang"}
    for pid in range(900, 920):
        sleeper(maker, pid, "train", "uvm_release")
    finding = one(maker, "GPU-HANG-DSTATE")
    assert finding.severity == "error"
    assert "and 12 more sleep" in finding.cause


def test_the_kernel_calls_it_hung(maker: RecordMaker) -> None:
    sleeper(maker, 900, "nvidia-smi", "rwsem_down_read_slowpath")
    log(maker, "[900.0] INFO: task nvidia-smi:900 blocked for more than 122 seconds.")
    assert severities(maker) == [("GPU-HANG-DSTATE", "error")]


def test_a_task_that_hung_once_and_went_on(maker: RecordMaker) -> None:
    maker.add_process(900)
    log(maker, "[900.0] INFO: task nvidia-smi:900 blocked for more than 122 seconds.")
    assert severities(maker) == []


def test_a_silent_nvml_may_be_setting_gpus_up(maker: RecordMaker) -> None:
    maker.tools["nvml.json"] = {"error": "no answer within 3 s: the driver may hang"}
    maker.add_process(900)
    assert severities(maker) == [("GPU-HANG-DSTATE", "warning")]


def test_an_nvml_that_fails_does_not_hang(maker: RecordMaker) -> None:
    maker.tools["nvml.json"] = {"error": "Driver/library version mismatch"}
    maker.add_process(900)
    assert found(maker, "GPU-HANG-DSTATE") == []


def test_the_cause_of_a_hang_is_told_once(maker: RecordMaker) -> None:
    maker.tools["nvml.json"] = {"error": "no answer within 3 s: the driver may hang"}
    log(maker, xid(119, 1000))
    maker.add_process(900)
    assert severities(maker) == [("GPU-XID", "error")]
    sleeper(maker, 901, "train", "os_acquire_rwlock_read")
    assert severities(maker) == [("GPU-XID", "error"), ("GPU-HANG-DSTATE", "info")]


class LiveRecord(RecordedHost):
    """A record that behaves as a running machine; process 900 goes on at the second look."""

    live = True  # type: ignore[assignment]
    looks = 0

    def text(self, path: str) -> str | None:
        text = super().text(path)
        if path == "/proc/900/stat" and text is not None:
            self.looks += 1
            return text.replace(") D ", ") S ") if self.looks > 1 else text
        return text


def test_a_live_process_is_looked_at_twice(maker: RecordMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    sleeper(maker, 900, "train", "os_acquire_rwlock_read")
    assert list(hanging(Machine(LiveRecord(str(maker.write()))))) == []
    assert len(slept) == 1


# NVLink uptime


def version(maker: RecordMaker, text: str) -> None:
    banner = str(maker.files["/proc/driver/nvidia/version"])
    maker.files["/proc/driver/nvidia/version"] = banner.replace("580.159.04", text)


@pytest.mark.parametrize(
    ("days", "driver", "expected"),
    [
        (59.9, "580.105.08", []),
        (60.1, "580.105.08", [("GPU-UPTIME-HANG", "warning")]),
        (66.6, "570.133.20", [("GPU-UPTIME-HANG", "warning")]),
        (66.6, "575.57.08", [("GPU-UPTIME-HANG", "warning")]),
        (66.6, "565.57.01", []),
        (66.6, "595.58.03", []),
        (120.0, "580.105.08", [("GPU-UPTIME-HANG", "info")]),
    ],
)
def test_uptime(maker: RecordMaker, days: float, driver: str, expected: list[tuple[str, str]]) -> None:
    version(maker, driver)
    maker.files["/proc/uptime"] = f"{days * DAY:.2f} 1.0\n"
    assert severities(maker) == expected


@pytest.mark.parametrize("model", ["NVIDIA L40S", "NVIDIA GeForce RTX 4090", "NVIDIA RTX PRO 6000"])
def test_uptime_without_nvlink(maker: RecordMaker, model: str) -> None:
    for index, uuid in enumerate(UUIDS):
        maker.add_gpu(index, index, uuid, model)
    maker.files["/proc/uptime"] = f"{70 * DAY}.0 1.0\n"
    assert severities(maker) == []


# Memory


def test_memory_of_listed_processes(maker: RecordMaker) -> None:
    maker.add_process(811, descriptors=("/dev/nvidia0",))
    maker.add_process(812, descriptors=("/dev/nvidia0",))
    maker.tools["nvml.json"] = nvml(used_by(811, 60000, memory_used_mib=60900))
    assert severities(maker) == []


def orphaned(maker: RecordMaker) -> None:
    maker.add_process(811, descriptors=("/dev/nvidia0", "/dev/nvidia0"))
    maker.tools["nvml.json"] = nvml({"memory_used_mib": 60000})


def test_memory_of_nobody(maker: RecordMaker) -> None:
    orphaned(maker)
    finding = one(maker, "GPU-VRAM-ORPHAN")
    assert (finding.severity, finding.target.gpu) == ("warning", UUIDS[0])
    assert "train (pid 811)" in finding.cause
    assert "0 processes with 0 MiB" in finding.evidence[0].says
    maker.tools["nvml.json"] = nvml(used_by(4, 1000, memory_used_mib=60000))
    assert "1 process with 1000 MiB" in one(maker, "GPU-VRAM-ORPHAN").evidence[0].says


def test_inside_a_container_other_processes_are_not_seen(maker: RecordMaker) -> None:
    orphaned(maker)
    maker.files["/proc/2/comm"] = "sleep\n"
    assert severities(maker) == []


def test_a_watcher_holds_no_memory(maker: RecordMaker) -> None:
    orphaned(maker)
    maker.files["/proc/811/comm"] = "nv-hostengine\n"
    assert severities(maker) == []


@pytest.mark.parametrize(
    "change", [{"memory_used_mib": 900}, used_by(4, None, memory_used_mib=60000), {"mig_mode": "Enabled"}]
)
def test_memory_that_cannot_be_added_up(maker: RecordMaker, change: dict[str, Any]) -> None:
    orphaned(maker)
    maker.tools["nvml.json"] = nvml({"memory_used_mib": 60000} | change)
    assert found(maker, "GPU-VRAM-ORPHAN") == []


def test_memory_that_the_kernel_itself_uses(maker: RecordMaker) -> None:
    maker.add_gpu(0, 0, UUIDS[0], "NVIDIA GH200 480GB")
    orphaned(maker)
    assert severities(maker) == []


# Compute mode


def exclusive(maker: RecordMaker, **more: Any) -> None:
    maker.add_process(811, descriptors=("/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia-uvm"))
    maker.add_process(812, {"CUDA_VISIBLE_DEVICES": UUIDS[0]})
    maker.tools["nvml.json"] = nvml(used_by(811, 900, compute_mode="Exclusive_Process", memory_used_mib=950))


def test_a_gpu_that_another_process_has(maker: RecordMaker) -> None:
    exclusive(maker)
    finding = one(maker, "GPU-COMPUTE-EXCLUSIVE", 812)
    assert (finding.severity, finding.target.pid) == ("error", 812)
    assert "train (pid 811)" in finding.cause


def test_its_owner_and_those_nobody_asked_for(maker: RecordMaker) -> None:
    exclusive(maker)
    assert found(maker, "GPU-COMPUTE-EXCLUSIVE", 811) == []
    assert found(maker, "GPU-COMPUTE-EXCLUSIVE") == []


def test_clients_of_mps_share_it(maker: RecordMaker) -> None:
    exclusive(maker)
    maker.files["/proc/811/comm"] = "nvidia-cuda-mps\n"
    assert found(maker, "GPU-COMPUTE-EXCLUSIVE", 812) == []


def test_another_gpu_is_free(maker: RecordMaker) -> None:
    exclusive(maker)
    maker.add_process(813)
    finding = one(maker, "GPU-COMPUTE-EXCLUSIVE", 813)
    assert finding.severity == "warning"
    assert finding.fix[0].command == f"export CUDA_VISIBLE_DEVICES={UUIDS[1]}"


# Fabric Manager


def switches(maker: RecordMaker, unit: dict[str, Any] | None, installed: str | None = None) -> None:
    maker.add_node("/dev/nvidia-nvswitchctl", 236, 255)
    maker.files["/proc/devices"] = str(maker.files["/proc/devices"]).replace("238", "236 nvidia-nvswitch\n238", 1)
    maker.tools["systemd.json"] = {"nvidia-fabricmanager.service": unit}
    if installed is not None:
        answer = {"argv": ["nv-fabricmanager", "--version"], "exit": 0}
        maker.tools["commands.json"] = [answer | {"stdout": f"Fabric Manager version is : {installed}\n"}]


def test_a_fabric_manager_that_runs(maker: RecordMaker) -> None:
    switches(maker, {"ActiveState": "active"}, "580.159.04")
    maker.add_process(700)
    maker.files["/proc/700/comm"] = "nv-fabricmanage\n"
    assert severities(maker) == []
    switches(maker, {"ActiveState": "active"}, "580.159.05")
    assert severities(maker) == [("GPU-FABRICMANAGER", "warning")]


def test_a_fabric_manager_of_which_nothing_is_known(maker: RecordMaker) -> None:
    switches(maker, None)
    del maker.tools["systemd.json"]
    report = examine(maker.host())
    assert report.findings == ()
    assert any("GPU-FABRICMANAGER" in entry.rules for entry in report.not_examined)


def test_no_fabric_without_links(maker: RecordMaker) -> None:
    switches(maker, None)
    maker.files["/proc/driver/nvidia/params"] = "NvLinkDisable: 1\nDeviceFileMode: 438\n"
    assert severities(maker) == []


# The persistence daemon's socket


def test_a_container_that_runs_is_no_matter(maker: RecordMaker) -> None:
    state = {"Running": True, "Error": "run/nvidia-persistenced/socket: no such device or address"}
    maker.tools["docker.json"] = {"containers": {"c" * 64: {"Id": "c" * 64, "Name": "/x", "State": state}}}
    assert found(maker, "GPU-PERSISTENCED-SOCK") == []
    state["Running"] = False
    assert one(maker, "GPU-PERSISTENCED-SOCK").target.container == "c" * 64


# SXid


def test_sxids_by_kind(maker: RecordMaker) -> None:
    log(
        maker,
        "[70.0] nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20001, Non-fatal, Link 44 egress",
        "[71.0] nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20001, Non-fatal, Link 45 egress",
        "[72.0] nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 28002, Severity 5 Engine instance 45 Sub-engine instance 00",
        "[73.0] nvidia-nvswitch1: SXid (PCI:0000:c2:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error",
    )
    assert [(f.title[-5:], f.severity) for f in found(maker, "GPU-SXID")] == [
        ("12028", "warning"),
        ("20001", "info"),
        ("28002", "info"),
    ]
    assert "Link 44, Link 45" in found(maker, "GPU-SXID")[1].cause
