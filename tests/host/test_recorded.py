# SPDX-License-Identifier: Apache-2.0
"""What a record answers: what it holds, what it says is absent, and what it leaves unknown."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpuiso.errors import BadInput, NotFound, Unknown
from gpuiso.host import open_host
from gpuiso.host.protocol import CommandResult, DeviceProgram, Host
from gpuiso.host.recorded import RecordedHost
from tests.host.records import RECORD, answer, device, host, link, record
from tests.support import SHARED, needs_shared

DEVICES = "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n508 nvidia-uvm\n\nBlock devices:\n  7 loop\n"
GPU_NODES = [
    device("/dev/null", 1, 3, mode="0666"),
    device("/dev/nvidia0", 195, 0, mode="0660", gid=44),
    device("/dev/nvidiactl", 195, 255),
]


def as_host(value: Host) -> Host:
    return value


# What is recorded


def test_answers_of_record_json(tmp_path: Path) -> None:
    found = as_host(host(tmp_path))
    assert (found.live, found.kernel, found.cgroup_mode, found.systemd) == (
        False,
        "6.8.0-45-generic",
        "unified",
        True,
    )
    assert found.name == str(tmp_path)


def test_record_json_need_only_state_its_format(tmp_path: Path) -> None:
    found = host(tmp_path, {"record.json": {"format": "gpuiso-host/1"}, "root/proc/sys/kernel/osrelease": "5.14.0\n"})
    assert found.kernel == "5.14.0"
    for question in ("cgroup_mode", "systemd"):
        with pytest.raises(Unknown, match=r"record\.json does not say"):
            getattr(found, question)


def test_nodes_and_files(tmp_path: Path) -> None:
    found = host(tmp_path, {"root/proc/devices": DEVICES, "root/etc/x": b"\xff\n"}, GPU_NODES)
    node = found.lstat("/dev/nvidia0")
    assert node is not None
    assert (node.type, node.major, node.minor, node.mode, node.uid, node.gid) == ("c", 195, 0, 0o660, 0, 44)
    file = found.stat("/proc/devices")
    assert file is not None
    assert (file.type, file.size) == ("f", len(DEVICES))
    assert found.read("/proc/devices") == DEVICES.encode()
    assert found.text("/etc/x") == "�\n"
    assert found.read("/dev/nvidia0") is None  # no regular file
    assert found.listdir("/dev") == ("null", "nvidia0", "nvidiactl")
    assert found.listdir("/dev/null") is None


@pytest.mark.parametrize(
    ("written", "mode"),
    [("0666", 0o666), ("666", 0o666), ("0o640", 0o640), ("020660", 0o660), (438, 0o666), (None, 0o666)],
)
def test_modes(tmp_path: Path, written: Any, mode: int) -> None:
    entry = device("/dev/nvidia0", 195, 0) | ({} if written is None else {"mode": written})
    node = host(tmp_path, {}, [entry]).lstat("/dev/nvidia0")
    assert node is not None
    assert node.mode == mode


def test_a_listed_file_exists_without_its_bytes(tmp_path: Path) -> None:
    library = "/usr/lib64/libcuda.so.535.54.03"
    found = host(tmp_path, {}, [{"path": library, "type": "f", "size": 29453200, "ctime": 1700000000.5}])
    node = found.stat(library)
    assert node is not None
    assert (node.size, node.ctime) == (29453200, 1700000000.5)
    with pytest.raises(Unknown, match="its content was not recorded"):
        found.read(library)


# Absent or unknown


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/dev/nvidia-uvm", None),
        ("/dev/nvidia-caps/nvidia-cap1", None),
        ("/dev/dri/renderD128", None),
        ("/dev/null/x", None),
        ("/dev/char/195:0", Unknown),
        ("/etc/docker/daemon.json", Unknown),
        ("/usr/lib64/libcuda.so.1", Unknown),
        ("/proc/modules", Unknown),
        ("/proc/4242/environ", Unknown),
        ("/sys/module/nvidia", Unknown),
        ("/sys/fs/cgroup/system.slice", Unknown),
        ("/proc/driver/nvidia-caps", None),
        ("/proc/driver/nvidia", Unknown),  # /proc/devices names the driver
        ("relative", None),
        ("/dev/nvidia0\0", None),
    ],
)
def test_absent_or_unknown(tmp_path: Path, path: str, expected: Any) -> None:
    files = {"root/proc/devices": DEVICES, "root/sys/fs/cgroup/cgroup.controllers": "cpu\n"}
    found = host(tmp_path, files, GPU_NODES)
    for question in (found.lstat, found.stat, found.listdir, found.read, found.readlink):
        assert answer(question, path) is expected


def test_without_nodes_the_devices_are_unknown(tmp_path: Path) -> None:
    found = host(tmp_path, {"root/proc/devices": DEVICES})
    assert answer(found.lstat, "/dev/nvidia0") is Unknown
    assert answer(found.listdir, "/dev") is Unknown


def test_no_device_node_at_all(tmp_path: Path) -> None:
    found = host(tmp_path, {"nodes.jsonl": "\n"})
    assert found.lstat("/dev/nvidiactl") is None
    assert found.listdir("/dev") == ()


@pytest.mark.parametrize("file", ["modules", "devices"])
def test_driver_not_loaded(tmp_path: Path, file: str) -> None:
    found = host(tmp_path, {f"root/proc/{file}": "nouveau 3000 1 - Live 0x0\n  1 mem\n"})
    assert found.lstat("/proc/driver/nvidia") is None
    assert found.text("/proc/driver/nvidia/version") is None
    assert found.listdir("/proc/driver/nvidia/gpus") is None
    assert found.listdir("/proc/driver") == ()


def test_a_loaded_driver_of_which_only_the_version_is_recorded(tmp_path: Path) -> None:
    found = host(tmp_path, {"root/proc/driver/nvidia/version": "NVRM version: ...\n", "root/proc/devices": ""})
    assert answer(found.lstat, "/proc/driver/nvidia/gpus") is Unknown
    assert found.listdir("/proc/driver/nvidia") == ("version",)


def test_pci_devices_are_held_whole(tmp_path: Path) -> None:
    base = "/sys/bus/pci/devices/0000:01:00.0"
    found = host(tmp_path, {f"root{base}/vendor": "0x10de\n"}, [])
    assert found.lstat(f"{base}/driver") is None  # no driver is bound
    assert found.lstat("/sys/bus/pci/devices/0000:02:00.0") is None
    assert found.listdir("/sys/bus/pci/devices") == ("0000:01:00.0",)
    assert answer(found.lstat, "/sys/bus/pci/drivers/nvidia") is Unknown


def test_a_listed_directory_is_held_whole(tmp_path: Path) -> None:
    nodes = [
        {"path": "/opt/lib", "type": "d"},
        {"path": "/opt/lib/libcuda.so.1", "type": "f"},
        {"path": "/usr/bin/nvidia-smi", "type": "f"},
    ]
    found = host(tmp_path, {}, nodes)
    assert found.lstat("/opt/lib/libnvidia-ml.so.1") is None
    assert answer(found.lstat, "/usr/bin/nvidia-ctk") is Unknown
    assert found.listdir("/usr/bin") == ("nvidia-smi",)
    assert answer(found.lstat, "/opt/other") is Unknown


def test_absent_json(tmp_path: Path) -> None:
    found = host(tmp_path, {"absent.json": ["/etc/cdi", "/etc/docker/daemon.json"]})
    assert found.lstat("/etc/cdi") is None
    assert found.listdir("/etc/cdi") is None
    assert found.read("/etc/cdi/nvidia.yaml") is None
    assert found.read("/etc/docker/daemon.json") is None
    assert answer(found.read, "/etc/docker/key.json") is Unknown


# Links


def test_links_lead_through_the_record(tmp_path: Path) -> None:
    nodes = [
        link("/usr/lib64/libcuda.so", "libcuda.so.1"),
        link("/usr/lib64/libcuda.so.1", "./../lib64/libcuda.so.535.54.03"),
        {"path": "/usr/lib64/libcuda.so.535.54.03", "type": "f", "size": 5},
        link("/lib64", "usr/lib64"),
        link("/etc/os-release", "../usr/lib/os-release"),
        link("/far", "/../../../../usr/lib/os-release"),
    ]
    found = host(tmp_path, {"root/usr/lib/os-release": "ID=debian\n"}, nodes)
    node = found.stat("/lib64/libcuda.so")
    assert node is not None
    assert (node.path, node.type, node.size) == ("/lib64/libcuda.so", "f", 5)
    assert found.readlink("/lib64/libcuda.so") == "libcuda.so.1"
    assert found.readlink("/usr/lib64/libcuda.so.535.54.03") is None
    assert found.text("/etc/os-release") == found.text("/far") == "ID=debian\n"
    entry = found.lstat("/etc/os-release")
    assert entry is not None
    assert entry.type == "l"


def test_bytes_recorded_under_a_link_are_its_targets(tmp_path: Path) -> None:
    found = host(tmp_path, {"root/etc/os-release": "ID=x\n"}, [link("/etc/os-release", "../usr/lib/os-release")])
    assert found.text("/etc/os-release") == "ID=x\n"
    node = found.stat("/etc/os-release")
    assert node is not None
    assert node.type == "f"
    assert found.readlink("/etc/os-release") == "../usr/lib/os-release"


@pytest.mark.parametrize(
    "nodes",
    [
        [link("/dev/a", "b"), link("/dev/b", "/dev/a")],
        [link("/dev/a", "a")],
        [link("/proc/5/cwd", "/proc/5/cwd"), link("/dev/a", "/proc/5/cwd"), link("/proc/5/ns/mnt", "mnt:[1]"),
         link("/proc/1/ns/mnt", "mnt:[1]")],
    ],
)  # fmt: skip
def test_loops_lead_nowhere(tmp_path: Path, nodes: list[dict[str, Any]]) -> None:
    found = host(tmp_path, {}, nodes)
    assert found.stat("/dev/a") is None
    assert found.read("/dev/a") is None
    assert found.lstat("/dev/a") is not None


def test_a_dangling_link_in_dev_is_absent(tmp_path: Path) -> None:
    found = host(tmp_path, {}, [link("/dev/char/195:0", "../nvidia0"), link("/dev/char/195:255", "/etc/x")])
    assert found.stat("/dev/char/195:0") is None
    assert answer(found.stat, "/dev/char/195:255") is Unknown
    assert found.lstat("/dev/char/195:1") is None


# Processes


def test_pids(tmp_path: Path) -> None:
    files = {"root/proc/77/environ": "", "root/proc/self/cgroup": "0::/\n", "root/proc/devices": ""}
    found = host(tmp_path, files, [device("/proc/5/root/dev/nvidia0", 195, 0), device("/dev/null", 1, 3)])
    assert found.pids() == (5, 77)


def test_pids_unknown_where_none_is_recorded(tmp_path: Path) -> None:
    with pytest.raises(Unknown):
        host(tmp_path, {"root/proc/devices": ""}, GPU_NODES).pids()


def test_a_container_has_its_own_view(tmp_path: Path) -> None:
    nodes = [*GPU_NODES, device("/proc/9/root/dev/null", 1, 3), link("/proc/9/root/dev/fd", "/proc/self/fd")]
    nodes += [link("/proc/9/root/etc/evil", "/../../../etc/secret"), link("/proc/9/root/up", "../../dev/nvidia0")]
    found = host(tmp_path, {"root/etc/secret": "host"}, nodes)
    assert found.lstat("/proc/9/root/dev/nvidia0") is None
    assert found.listdir("/proc/9/root/dev") == ("fd", "null")
    assert answer(found.read, "/proc/9/root/etc/evil") is Unknown
    assert found.stat("/proc/9/root/up") is None
    assert answer(found.lstat, "/proc/9/root/usr/lib64/libcuda.so.1") is Unknown
    assert answer(found.lstat, "/proc/8/root/dev/nvidia0") is Unknown


@pytest.mark.parametrize(("own", "expected"), [("mnt:[4026531841]", "c"), ("mnt:[4026532999]", Unknown)])
@pytest.mark.parametrize("hosts", ["1", "self"])
@pytest.mark.parametrize("written", ["link", "file"])
def test_a_process_in_the_hosts_mount_namespace(
    tmp_path: Path, own: str, expected: Any, hosts: str, written: str
) -> None:
    spaces = {"/proc/9/ns/mnt": own, f"/proc/{hosts}/ns/mnt": "mnt:[4026531841]"}
    if written == "link":
        found = host(tmp_path, {}, GPU_NODES + [link(*space) for space in spaces.items()])
    else:
        found = host(tmp_path, {f"root{path}": f"{target}\n" for path, target in spaces.items()}, GPU_NODES)
    node = answer(found.stat, "/proc/9/root/dev/nvidia0")
    assert getattr(node, "type", node) == expected
    assert answer(found.lstat, "/proc/9/root/dev/nvidia-uvm") is (None if expected == "c" else Unknown)
    assert answer(found.lstat, "/proc/9/ns/pid") is Unknown


def test_the_first_process_sees_the_host(tmp_path: Path) -> None:
    assert host(tmp_path, {}, GPU_NODES).lstat("/proc/1/root/dev/nvidia0") is not None


def test_descriptors(tmp_path: Path) -> None:
    nodes = [link("/proc/9/fd/3", "/dev/nvidia0"), link("/proc/9/fd/4", "socket:[77]"), *GPU_NODES]
    nodes += [device("/proc/9/root/dev/nvidia0", 195, 0), link("/proc/9/exe", "/usr/bin/x (deleted)")]
    found = host(tmp_path, {"root/proc/9/comm": "x\n"}, nodes)
    assert found.listdir("/proc/9/fd") == ("3", "4")
    assert found.lstat("/proc/9/fd/5") is None
    node = found.stat("/proc/9/fd/3")
    assert node is not None
    assert (node.major, node.minor) == (195, 0)
    assert answer(found.stat, "/proc/9/fd/4") is Unknown
    assert answer(found.stat, "/proc/9/exe") is Unknown
    assert answer(found.read, "/proc/9/environ") is Unknown


# Cgroups and access


def test_device_programs(tmp_path: Path) -> None:
    program = {"id": 7, "name": "sd_devices", "tag": "ab", "attach_flags": 2, "insns": "b700000001000000"}
    cgroups = {
        "/": {"device_programs": []},
        "/a/b": {"device_programs": [program, {"id": 8, "attach_flags": 0}]},
        "/denied": {"device_programs": None},
        "/other": {},
    }
    found = host(tmp_path, {"cgroups.json": cgroups})
    assert found.device_programs("/") == ()
    assert found.device_programs("/a/b/") == (
        DeviceProgram(7, "sd_devices", "ab", 2, bytes.fromhex("b700000001000000")),
        DeviceProgram(8, "", "", 0, None),
    )
    with pytest.raises(Unknown, match="not permitted to ask"):
        found.device_programs("/denied")
    for cgroup in ("/other", "/nowhere"):
        with pytest.raises(Unknown, match="not recorded"):
            found.device_programs(cgroup)
    assert answer(host(tmp_path / "bare").device_programs, "/") is Unknown


def test_probes(tmp_path: Path) -> None:
    probes = {"9": {"/dev/nvidia0": {"rw": "EPERM"}, "/dev/nvidiactl": {"w": "EACCES"}}, "10": {}}
    found = host(tmp_path, {"probes.json": probes})
    assert found.probe(9, "/dev/nvidia0") == "EPERM"
    assert found.probe(9, "/dev/nvidia1") is None
    assert found.probe(9, "/dev/nvidiactl") == "EACCES"
    assert found.probe(9, "/dev/nvidiactl", "r") is None
    assert answer(found.probe, 9, "/dev/nvidia0", "r") is Unknown
    assert found.probe(10, "/dev/nvidia0") is None
    assert answer(found.probe, 11, "/dev/nvidia0") is Unknown
    assert answer(host(tmp_path / "bare").probe, 9, "/dev/nvidia0") is Unknown


# Tools


def test_nvml(tmp_path: Path) -> None:
    nvml = {"driver_version": "535.54.03", "gpus": [{"index": 0, "uuid": "GPU-1", "minor": None}]}
    assert host(tmp_path / "a", {"tools/nvml.json": nvml}).nvml() == nvml
    assert host(tmp_path / "b", {"tools/nvml.json": "null"}).nvml() is None
    assert answer(host(tmp_path / "c").nvml) is Unknown


def test_nvml_from_nvidia_smi(tmp_path: Path) -> None:
    xml = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log><driver_version>535.54.03</driver_version><cuda_version>N/A</cuda_version>
<gpu id="00000000:3B:00.0"><uuid>GPU-98b0e715-3bf7-c370-6d85-c524e4400665</uuid><minor_number>2</minor_number>
<fb_memory_usage><total>81559 MiB</total><used>[N/A]</used></fb_memory_usage>
<mig_mode><current_mig>Enabled</current_mig></mig_mode>
<mig_devices><mig_device><gpu_instance_id>1</gpu_instance_id><compute_instance_id>0</compute_instance_id>
</mig_device></mig_devices>
<processes><process_info><pid>77</pid><type>C</type><used_memory>500 MiB</used_memory></process_info></processes>
</gpu></nvidia_smi_log>"""
    nvml = host(tmp_path, {"tools/nvidia-smi-q.xml": xml}).nvml()
    assert nvml is not None
    assert (nvml["driver_version"], nvml["cuda_version"]) == ("535.54.03", None)
    (gpu,) = nvml["gpus"]
    assert (gpu["pci_bus_id"], gpu["minor"]) == ("00000000:3B:00.0", 2)
    assert (gpu["memory_total_mib"], gpu["memory_used_mib"], gpu["mig_mode"]) == (81559, None, "Enabled")
    assert gpu["processes"] == [{"pid": 77, "type": "C", "used_memory_mib": 500}]
    assert gpu["mig_devices"] == [{"uuid": None, "gpu_instance": 1, "compute_instance": 0, "profile": None}]


def test_units_docker_log(tmp_path: Path) -> None:
    files = {
        "tools/systemd.json": {"a.service": {"PrivateDevices": True}, "gone.service": None},
        "tools/docker.json": {"info": {"CgroupDriver": "systemd"}, "containers": {"c0ffee": {"Id": "c0ffee"}}},
        "tools/dmesg.txt": b"[1.0] NVRM: \xff\n",
    }
    found = host(tmp_path / "full", files)
    assert found.unit("a.service") == {"PrivateDevices": True}
    assert found.unit("gone.service") is None
    assert answer(found.unit, "b.service") is Unknown
    assert found.docker_info() == {"CgroupDriver": "systemd"}
    assert found.docker_containers() == {"c0ffee": {"Id": "c0ffee"}}
    assert found.kernel_log() == "[1.0] NVRM: �\n"
    bare = host(tmp_path / "bare", {"tools/docker.json": {"info": None}})
    assert bare.docker_info() is None
    assert answer(bare.docker_containers) is answer(bare.kernel_log) is answer(bare.unit, "a") is Unknown


def test_commands(tmp_path: Path) -> None:
    commands = [
        {"argv": ["nvidia-smi", "-L"], "exit": 9, "stdout": "a", "stderr": "b", "seconds": 0.5, "timed_out": False},
        {"argv": ["slow"], "exit": None, "stdout": "", "stderr": "", "seconds": 5, "timed_out": True},
        {"argv": ["none"], "exit": None, "timed_out": False},
    ]
    found = host(tmp_path, {"tools/commands.json": commands})
    assert found.command(("nvidia-smi", "-L")) == CommandResult(("nvidia-smi", "-L"), 9, "a", "b", 0.5, False)
    slow = found.command(("slow",))
    assert slow is not None
    assert slow.timed_out
    assert found.command(("none",)) is None
    assert answer(found.command, ("nvidia-smi",)) is Unknown


# What breaks the format

SOURCES: list[tuple[str, Any, str]] = [
    ("record.json", "", r"record\.json:1:1: not JSON"),
    ("record.json", "[]", r"record\.json: must be an object, not a list"),
    ("record.json", {"kernel": "6"}, r"record\.json: format: must be a string, not null"),
    ("record.json", {"format": "gpuiso-host/2"}, r"'gpuiso-host/2' cannot be read.*reads 'gpuiso-host/1'"),
    ("record.json", RECORD | {"cgroup_mode": "v3"}, r"cgroup_mode: must be unified, hybrid, legacy, not 'v3'"),
    ("record.json", RECORD | {"systemd": "yes"}, r"systemd: must be true or false"),
    ("record.json", b"\xff", r"record\.json:1: not UTF-8"),
    ("nodes.jsonl", '{"path": "/dev/a", "type": "p"}\n{"path"\n', r"nodes\.jsonl:2:8: not JSON"),
    ("nodes.jsonl", "\n[1]\n", r"nodes\.jsonl:2: must be an object, not a list"),
    ("nodes.jsonl", '{"path": "/dev/../etc", "type": "f"}', r"nodes\.jsonl:1: path: must have no empty"),
    ("nodes.jsonl", '{"path": "dev/a", "type": "f"}', r":1: path: must be an absolute path"),
    ("nodes.jsonl", '{"path": "/dev/a\\u0000", "type": "f"}', r":1: path: must be an absolute path"),
    ("nodes.jsonl", '{"path": "/' + "a/" * 70 + 'a", "type": "f"}', r":1: path: must have at most 64 parts"),
    ("nodes.jsonl", '{"path": "/dev/a", "type": "x"}', r":1: type: must be one of b, c, d, f, l, p, s, not 'x'"),
    ("nodes.jsonl", '{"path": "/dev/a", "type": []}', r":1: type: must be one of"),
    ("nodes.jsonl", '{"path": "/dev/a", "type": "l"}', r":1: target: must be a string, not null"),
    ("nodes.jsonl", '{"path": "/dev/a", "type": "c", "minor": 0}', r":1: major: must be an integer, not null"),
    ("nodes.jsonl", '{"path": "/dev/a", "type": "c", "major": 4096, "minor": 0}', r":1: major: must be from 0"),
    ("nodes.jsonl", '{"path": "/dev/a", "type": "f", "mode": "rw"}', r":1: mode: must be octal digits"),
    ("nodes.jsonl", '{"path": "/dev/a", "type": "f", "ctime": 1e999}', r":1: ctime: must be a number"),
    ("nodes.jsonl", '{"path": "/a", "type": "f"}\n' * 2, r":2: '/a' stands twice, first in line 1"),
    ("nodes.jsonl", '{"path": "/a", "path": "/b"}', r":1: not usable: 'path' stands twice in one object"),
    ("nodes.jsonl", '{"note": "' + "x" * (1 << 20) + '"}', r":1: a line longer than 1 MiB"),
    ("nodes.jsonl", '{"size": ' + "9" * 5000 + "}", r":1: not usable: a number has 5000 digits"),
    ("nodes.jsonl", "[" * 200_000, r":1: not usable: nested too deeply"),
    ("absent.json", ["/a/../b"], r"absent\.json: \[0\]: must have no empty"),
]  # fmt: skip


@pytest.mark.parametrize(("file", "content", "message"), SOURCES)
def test_broken_record(tmp_path: Path, file: str, content: Any, message: str) -> None:
    record(tmp_path, {file: content})
    with pytest.raises(BadInput, match=message) as caught:
        RecordedHost(str(tmp_path))
    assert caught.value.file == f"{tmp_path}/{file}"


GPU = {"index": 0}
TOOLS: list[tuple[str, Any, str, str]] = [
    ("cgroups.json", {"/": []}, "device_programs", r"/: must be an object, not a list"),
    ("cgroups.json", {"/": {"device_programs": {}}}, "device_programs", r"/\.device_programs: must be a list"),
    ("cgroups.json", {"/": {"device_programs": [{"insns": "b7"}]}}, "device_programs", r"whole instructions"),
    ("cgroups.json", {"/": {"device_programs": [{"insns": "xy"}]}}, "device_programs", r"must be hexadecimal"),
    ("cgroups.json", {"/": {"device_programs": [{"id": -1}]}}, "device_programs", r"\[0\]\.id: must be from 0"),
    ("probes.json", {"self": {}}, "probe", r"'self' is no pid"),
    ("probes.json", {"9": {"/dev/a": {"rw": "EWHAT"}}}, "probe", r"'EWHAT' is no errno name"),
    ("probes.json", {"9": {"/dev/a": {"x": "EPERM"}}}, "probe", r"access must be of r and w"),
    ("tools/nvml.json", [], "nvml", r"must be an object"),
    ("tools/nvml.json", {"gpus": [GPU | {"uuid": 1}]}, "nvml", r"gpus\[0\]\.uuid: must be a string, not an integer"),
    ("tools/nvml.json", {"gpus": [GPU | {"processes": [{}]}]}, "nvml", r"processes\[0\]\.pid: must be an integer"),
    ("tools/nvml.json", '{"gpus": [' + "[" * 100_000, "nvml", r"nested too deeply"),
    ("tools/nvml.json", '{"driver_version": NaN}', "nvml", r"NaN is no JSON number"),
    ("tools/nvml.json", b" " * ((16 << 20) + 1), "nvml", r"larger than 16 MiB"),
    ("tools/nvidia-smi-q.xml", "<a>", "nvml", r"nvidia-smi-q\.xml:1:4: not XML: no element found"),
    ("tools/nvidia-smi-q.xml", "<a/>", "nvml", r"not the output of nvidia-smi -q -x"),
    ("tools/nvidia-smi-q.xml", "<a>" * 100, "nvml", r"nested too deeply"),
    ("tools/nvidia-smi-q.xml", '<!DOCTYPE a [<!ENTITY b "c">]><a/>', "nvml", r"its own document type"),
    ("tools/systemd.json", {"a.service": 1}, "unit", r"a\.service: must be an object"),
    ("tools/docker.json", {"containers": {"a": 1}}, "docker_containers", r"containers\.a: must be an object"),
    ("tools/commands.json", [{"argv": []}], "command", r"\[0\]\.argv: must name a program"),
    ("tools/commands.json", [{"argv": ["a"], "exit": 0, "stdout": 1}], "command", r"\[0\]\.stdout: must be a string"),
]  # fmt: skip
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "device_programs": ("/",),
    "probe": (9, "/dev/a"),
    "unit": ("a.service",),
    "command": (("a",),),
}


@pytest.mark.parametrize(("file", "content", "question", "message"), TOOLS)
def test_broken_tool_file(tmp_path: Path, file: str, content: Any, question: str, message: str) -> None:
    found = host(tmp_path, {file: content})
    with pytest.raises(BadInput, match=message) as caught:
        getattr(found, question)(*ARGUMENTS.get(question, ()))
    assert str(caught.value).startswith(f"{tmp_path}/{file}")


def test_entities_are_never_expanded(tmp_path: Path) -> None:
    bomb = '<!DOCTYPE a SYSTEM "/etc/passwd"><nvidia_smi_log><driver_version>&x;</driver_version></nvidia_smi_log>'
    nvml = host(tmp_path, {"tools/nvidia-smi-q.xml": bomb}).nvml()
    assert nvml == {"driver_version": None, "cuda_version": None, "gpus": []}


def test_no_such_record(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no such record"):
        open_host(str(tmp_path / "none"))


def test_not_a_record(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"it has no record\.json"):
        open_host(str(tmp_path))


# The recorded H200 host


@needs_shared
def test_h200_host() -> None:
    assert SHARED is not None
    found = open_host(str(SHARED / "hosts/h200-x4"))
    assert found.listdir("/proc/driver/nvidia/gpus") == tuple(f"0000:00:0{n}.0" for n in (6, 7, 8, 9))
    nvml = found.nvml()
    assert nvml is not None
    assert [gpu["minor"] for gpu in nvml["gpus"]] == [0, 1, 2, 3]
    node = found.stat("/usr/local/nvidia/lib/libcuda.so")
    assert node is not None
    assert (node.type, node.size) == ("f", 96284520)
    assert found.readlink("/sys/bus/pci/devices/0000:00:06.0/driver") == "../../../bus/pci/drivers/nvidia"
    assert answer(found.lstat, "/dev/char/195:0") is Unknown
    assert answer(found.pids) is Unknown
    assert found.device_programs("/user.slice/user-0.slice/session-1.scope") == ()


@needs_shared
def test_h200_xml_says_what_nvml_says(tmp_path: Path) -> None:
    assert SHARED is not None
    tools = SHARED / "hosts/h200-x4/tools"
    found = host(tmp_path, {"tools/nvidia-smi-q.xml": (tools / "nvidia-smi-q.xml").read_bytes()}).nvml()
    said = json.loads((tools / "nvml.json").read_text())
    assert found is not None
    assert (found["driver_version"], found["cuda_version"]) == (said["driver_version"], said["cuda_version"])
    for derived, asked in zip(found["gpus"], said["gpus"], strict=True):
        assert derived | asked == derived


def test_reading_a_record_imports_little(tmp_path: Path) -> None:
    record(tmp_path, {}, GPU_NODES)
    program = (
        "import sys; before = set(sys.modules); from gpuiso.host import open_host;"
        f"open_host({str(tmp_path)!r}).lstat('/dev/nvidia0');"
        "print(*{m.split('.')[0] for m in set(sys.modules) - before})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=os.environ)
    assert not {"jsonschema", "tarfile", "tempfile", "rich", "yaml", "subprocess"} & set(done.stdout.split())
