# SPDX-License-Identifier: Apache-2.0
"""What sandboxes and security modules keep from a process beside the nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doctor.findings import found, map_files, severities
from tests.records import RecordMaker

LIBCUDA = "/usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04"
AVC = (
    'audit: type=1400 audit(1.2:3): avc:  denied  { read write } for  pid=9 comm="python3" path="/dev/nvidia0"'
    ' dev="devtmpfs" ino=1 scontext=system_u:system_r:container_t:s0:c1,c2'
    " tcontext=system_u:object_r:xserver_misc_device_t:s0 tclass=chr_file permissive=0\n"
)


def process(maker: RecordMaker, **more: object) -> None:
    maker.add_process(7, {}, **more)  # type: ignore[arg-type]
    map_files(maker, 7, LIBCUDA)
    if not more.get("descriptors"):
        maker.nodes["/proc/7/fd/0"] = {"path": "/proc/7/fd/0", "type": "l", "target": "/dev/null"}


def proc_mount(maker: RecordMaker, option: str) -> None:
    maker.files["/proc/7/mountinfo"] = f"1 0 8:1 / / rw - ext4 a rw\n2 1 0:5 / /proc {option},nosuid - proc proc rw\n"


def test_proc(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    process(maker)
    proc_mount(maker, "rw")
    assert severities(maker, 7) == []
    proc_mount(maker, "ro")
    assert severities(maker, 7) == [("GPU-SANDBOX-LANDLOCK", "warning")]


def test_a_process_that_has_started_cuda_lacks_nothing(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    process(maker, descriptors=("/dev/nvidia0", "/dev/nvidia-uvm"))
    proc_mount(maker, "ro")
    assert severities(maker, 7) == []


def test_landlock_in_the_log(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    process(maker)
    proc_mount(maker, "rw")
    line = 'audit: type=1423 audit(1.2:3): domain=1a2b blockers=fs.write_file path="/{}" dev="proc" ino=5\n'
    maker.tools["dmesg.txt"] = line.format("proc/7/task/9/comm")
    assert severities(maker, 7) == [("GPU-SANDBOX-LANDLOCK", "warning")]
    maker.tools["dmesg.txt"] = line.format("home/user/file")
    assert severities(maker, 7) == []


@pytest.mark.parametrize(
    ("pid", "syscall", "arch", "name"),
    [
        (7, 319, "c000003e", "memfd_create"),
        (7, 279, "c00000b7", "memfd_create"),
        (8, 319, "c000003e", None),
        (7, 1, "c000003e", None),
        (7, 319, "c00000b7", None),
    ],
)
def test_seccomp(tmp_path: Path, pid: int, syscall: int, arch: str, name: str | None) -> None:
    maker = RecordMaker(tmp_path)
    process(maker)
    maker.tools["dmesg.txt"] = (
        f'audit: type=1326 audit(1.2:3): auid=0 uid=0 gid=0 ses=1 pid={pid} comm="python3" exe="/usr/bin/python3" sig=0'
        f" arch={arch} syscall={syscall} compat=0 ip=0x1 code=0x50000\n"
    )
    assert found(maker, "GPU-SANDBOX-SECCOMP", 7) == []  # it has no filter
    maker.files["/proc/7/status"] = str(maker.files["/proc/7/status"]).replace("Seccomp:\t0", "Seccomp:\t2")
    findings = found(maker, "GPU-SANDBOX-SECCOMP", 7)
    assert [name in finding.cause for finding in findings if name] == ([True] if name else [])
    assert len(findings) == (1 if name else 0)


@pytest.mark.parametrize(
    ("enforce", "label", "permissive", "expected"),
    [
        ("1", "container_t", 0, True),
        ("0", "container_t", 0, False),
        ("1", "container_t", 1, False),
        ("1", "spc_t", 0, False),
    ],
)
def test_selinux(tmp_path: Path, enforce: str, label: str, permissive: int, expected: bool) -> None:
    maker = RecordMaker(tmp_path)
    process(maker)
    maker.files["/sys/fs/selinux/enforce"] = enforce
    maker.files["/proc/7/attr/current"] = f"system_u:system_r:{label}:s0\0"
    maker.tools["dmesg.txt"] = AVC.replace("permissive=0", f"permissive={permissive}")
    assert bool(found(maker, "GPU-SELINUX-DENY", 7)) is expected


def test_gvisor(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    state = {"Running": False, "Error": "creating nvproxy: unsupported Nvidia driver version: 580.159.04"}
    container = {"Name": "/a", "State": state, "HostConfig": {"Runtime": "runsc"}, "Config": {"Env": []}}
    maker.tools["docker.json"] = {"containers": {"ab" * 32: container}}
    assert severities(maker) == [("GPU-GVISOR-DRIVER", "error")]
    state["Error"] = "unsupported Nvidia driver version: 550.90.07"  # of a driver that is gone
    assert severities(maker) == []
    state["Error"] = ""  # it asks for no GPU
    assert severities(maker) == []


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["c 195:* rwm", "c 509:* rwm"], True),
        (["c 195:* rwm", "c 238:* rwm"], False),
        (["c 195:* rwm", "c 509:* rwm", "c 238:* rwm"], False),
        (["a"], False),
        (["c 509:* rwm"], False),
        (["c 195:* rwm"], False),
        (["c *:* rwm"], False),
        (["c 195:* rwm", "c 226:* rwm"], False),
    ],
)
def test_lxc(tmp_path: Path, lines: list[str], expected: bool) -> None:
    maker = RecordMaker(tmp_path)
    text = "".join(f"lxc.cgroup2.devices.allow: {line}\n" for line in lines)
    maker.files["/etc/pve/lxc/101.conf"] = f"arch: amd64\n{text}\n[snapshot]\nlxc.cgroup2.devices.allow: c 238:* rwm\n"
    assert bool(found(maker, "GPU-LXC-MAJOR-STALE")) is expected


def test_lxc_of_debian(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    text = "lxc.cgroup.devices.allow = c 195:* rwm\nlxc.cgroup2.devices.allow = c 511:* rwm\n"
    maker.files["/var/lib/lxc/gpu/config"] = text
    [finding] = found(maker, "GPU-LXC-MAJOR-STALE")
    assert finding.target.container == "gpu"
    assert "lxc-stop -r -n gpu" in str(finding.fix[0].command)
