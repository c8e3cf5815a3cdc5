# SPDX-License-Identifier: Apache-2.0
"""What is written reads back with the same answers, and names nobody."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from gpuiso.doctor.engine import examine
from gpuiso.errors import FailedAndUndone, Unknown, UsageError
from gpuiso.host import open_host, record
from gpuiso.host.live import LiveHost
from gpuiso.host.protocol import Host
from gpuiso.host.record import write_record
from gpuiso.host.record_contents import select_processes
from gpuiso.host.recorded import RecordedHost
from gpuiso.host.recorder import Recorder
from gpuiso.host.redact import Redactor
from tests.host.records import answer, device, host, link
from tests.support import REPOSITORY, SHARED, needs_shared

UUID = "GPU-98b0e715-3bf7-c370-6d85-c524e4400665"
MIG = "MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f"
OTHER_UUID = "GPU-98b0a656-c90b-d548-2a90-a29b9fa5ff51"
SECRETS = (
    "98b0e715",
    "98b0a656",
    "c6d4f1ef",
    "frodo",
    "bagend",
    "shire.example",
    "hunter2",
    "1652823054567",
    "gandalf",
)
PROGRAM = {"id": 7, "name": "sd_devices", "tag": "ab", "attach_flags": 2, "insns": "b70000000100000095" + "0" * 14}

PASSWD = "root:x:0:0:root:/root:/bin/sh\nfrodo:x:1000:1000:,,,:/home/frodo:/bin/sh\nlp:x:7:7::/:/bin/false\n"
STATUS = (
    "Name:\t{name}\nState:\tS (sleeping)\nPPid:\t{ppid}\nUid:\t1000\t1000\t1000\t1000\nGid:\t0\t0\t0\t0\nCapEff:\t0\n"
)
MAPS = (
    "7f0000-7f1000 r-xp 00000000 08:01 77 /home/frodo/venv/lib/python3/site-packages/torch/lib/libtorch.so\n"
    "7f1000-7f2000 r-xp 00000000 08:01 78 /usr/lib64/libcuda.so.535.54.03\n"
    "7f2000-7f3000 r-xp 00000000 08:01 79 /usr/lib64/libfrodo.so\n"
)
FILES: dict[str, Any] = {
    "root/etc/passwd": PASSWD,
    "root/etc/hostname": "bagend.shire.example\n",
    "root/etc/docker/daemon.json": {
        "runtimes": {"nvidia": {"path": "nvidia-container-runtime"}},
        "proxies": {"http-proxy": "http://frodo:hunter2@proxy:3128"},
        "auth-token": "hunter2",
    },
    "root/proc/devices": "Character devices:\n195 nvidia\n195 nvidiactl\n508 nvidia-uvm\n",
    "root/proc/modules": "nvidia 1 2 - Live 0x0 (PO)\n",
    "root/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue\n",
    "root/proc/driver/nvidia/gpus/0000:01:00.0/information": f"Model: X\nGPU UUID: \t {UUID}\nDevice Minor: \t 0\n",
    "root/proc/driver/nvidia/gpus/0000:02:00.0/information": f"Model: X\nGPU UUID: \t {OTHER_UUID}\n",
    "root/sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de\n",
    "root/sys/bus/pci/devices/0000:01:00.0/class": "0x030200\n",
    "root/sys/bus/pci/devices/0000:01:00.0/device": "0x2335\n",
    "root/sys/bus/pci/devices/0000:01:00.0/config": bytes(range(256)),
    "root/sys/class/kfd/kfd/topology/nodes/1/properties": "simd_count 1\nunique_id 16452823054567000000\n",
    "root/proc/1/status": STATUS.format(name="systemd", ppid=0),
    "root/proc/70/status": STATUS.format(name="bash", ppid=1),
    "root/proc/70/environ": "PWD=/home/frodo\0",
    "root/proc/77/status": STATUS.format(name="python3", ppid=70),
    "root/proc/77/stat": "77 (python3) S 70 77 77 0 -1 0 0\n",
    "root/proc/77/comm": "python3\n",
    "root/proc/77/cmdline": "/home/frodo/venv/bin/python3\0train.py\0--password=hunter2\0--verbose\0hunter2\0",
    "root/proc/77/environ": "HOME=/home/frodo\0USER=frodo\0API_KEY=hunter2\0CUDA_VISIBLE_DEVICES=GPU-98b0e7,GPU-98b0\0"
    "CUDA_VISBLE_DEVICES=hunter2\0HOSTNAME=bagend\0EMPTY=\0NVIDIA_API_KEY=hunter2\0",
    "root/proc/77/cgroup": "0::/user.slice/frodo.slice/docker-c0ffee.scope\n",
    "root/proc/77/maps": MAPS,
    "root/proc/77/mountinfo": "1 2 0:3 / / rw - ext4 /dev/sda1 rw\n2 1 0:4 / /mnt rw - nfs4 gandalf:/export rw\n",
    "root/proc/88/status": STATUS.format(name="sh", ppid=1),
    "root/proc/88/environ": "SECRET=hunter2\0",
    "cgroups.json": {
        "/": {"device_programs": []},
        "/user.slice": {"device_programs": None},
        "/user.slice/frodo.slice/docker-c0ffee.scope": {"device_programs": [PROGRAM]},
    },
    "probes.json": {"77": {"/dev/nvidia0": {"rw": "EPERM"}}},
    "tools/nvml.json": {
        "driver_version": "535.54.03",
        "gpus": [
            {"index": 0, "uuid": UUID, "serial": "1652823054567", "mig_devices": [{"uuid": MIG}]},
            {"index": 1, "uuid": OTHER_UUID},
        ],
    },
    "tools/dmesg.txt": f"[1.0] NVRM: Xid (PCI:0000:01:00): 79, {UUID} on bagend\n[2.0] usb: hunter2 attached\n",
    "tools/systemd.json": {
        "docker-c0ffee.scope": {
            "DeviceAllow": [["/dev/nvidia0", "rwm"]],
            "ExecStart": [["/usr/bin/x", ["hunter2"], False]],
            "Environment": ["TOKEN=hunter2", f"NVIDIA_VISIBLE_DEVICES={UUID}"],
        },
        "docker.service": None,
    },
    "tools/docker.json": {
        "info": {"CgroupDriver": "systemd", "Name": "bagend", "Labels": ["hunter2"]},
        "containers": {
            "c0ffee": {
                "Id": "c0ffee",
                "Args": ["hunter2"],
                "Config": {"Env": ["PASSWORD=hunter2", f"NVIDIA_VISIBLE_DEVICES={UUID}"], "Hostname": "c0ffee1"},
                "HostConfig": {"Privileged": False, "Binds": ["/home/frodo:/x"]},
                "Mounts": [{"Source": "/home/frodo/data", "Destination": "/data"}],
                "State": {"Pid": 77},
            }
        },
    },
}  # fmt: skip
NODES = [
    device("/dev/null", 1, 3, mode="0666"),
    device("/dev/nvidia0", 195, 0, mode="0660", gid=44, ctime=1.5),
    device("/dev/nvidiactl", 195, 255, mode="0666"),
    link("/dev/char/195:0", "../nvidia0"),
    link("/usr/lib64/libcuda.so.1", "libcuda.so.535.54.03"),
    {"path": "/usr/lib64/libcuda.so.535.54.03", "type": "f", "mode": "0755", "size": 9},
    link("/sys/bus/pci/devices/0000:01:00.0/driver", "../../../bus/pci/drivers/nvidia"),
    link("/proc/77/fd/9", "/dev/nvidia0"),
    link("/proc/77/fd/10", "/home/frodo/notes"),
    link("/proc/77/ns/mnt", "mnt:[4026532999]"),
    link("/proc/77/exe", "/home/frodo/venv/bin/python3"),
    link("/proc/1/ns/mnt", "mnt:[4026531841]"),
    device("/proc/77/root/dev/null", 1, 3),
    device("/proc/77/root/dev/nvidia0", 195, 0),
]  # fmt: skip


@pytest.fixture
def source(tmp_path: Path) -> RecordedHost:
    return host(tmp_path / "source", FILES, NODES)


def written(source: Host, target: Path, **options: Any) -> RecordedHost:
    write_record(source, str(target), **options)
    return RecordedHost(str(target))


def facts(asked: Host, recorder: Recorder) -> dict[tuple[str, str], Any]:
    """The answers of ``asked`` to every question about files that ``recorder`` got answered."""
    found: dict[tuple[str, str], Any] = {}
    for path in recorder.absent | recorder.nodes.keys() | recorder.files.keys() | recorder.listings.keys():
        found["readlink", path] = answer(asked.readlink, path)
        for name, question in (("lstat", asked.lstat), ("stat", asked.stat)):
            node = answer(question, path)
            # A directory's own mode and size are kept only where it is listed.
            found[name, path] = node.type if node not in (None, Unknown) and node.type == "d" else node
    for path in recorder.files:
        found["read", path] = answer(asked.read, path)
    for path in recorder.listings:
        found["listdir", path] = answer(asked.listdir, path)
    return found


@needs_shared
@pytest.mark.parametrize("name", ["copy", "copy.tar.gz"])
def test_h200_record_written_again_says_the_same(tmp_path: Path, name: str) -> None:
    assert SHARED is not None
    recorder = Recorder(open_host(str(SHARED / "hosts/h200-x4")))
    copy = written(recorder, tmp_path / name, raw=True)
    assert facts(copy, recorder) == facts(recorder.host, recorder)
    assert len(recorder.files) > 60
    assert copy.nvml() == recorder.host.nvml()
    assert copy.kernel_log() == recorder.host.kernel_log()
    assert copy.device_programs("/") == ()
    assert (copy.kernel, copy.cgroup_mode, copy.systemd) == ("6.18.44", "unified", False)


@needs_shared
def test_h200_record_redacted(tmp_path: Path) -> None:
    assert SHARED is not None
    recorder = Recorder(open_host(str(SHARED / "hosts/h200-x4")))
    redactor = Redactor(b"k" * 32)
    copy = written(recorder, tmp_path / "copy", redactor=redactor)
    expected = facts(recorder.host, recorder)
    assert facts(copy, recorder) == {
        key: redactor.identifiers(value.decode()).encode() if isinstance(value, bytes) and b"UUID" in value else value
        for key, value in expected.items()
    }
    nvml, original = copy.nvml(), recorder.host.nvml()
    assert nvml is not None
    assert original is not None
    uuids = [gpu["uuid"] for gpu in nvml["gpus"]]
    assert uuids == [redactor.text(gpu["uuid"]) for gpu in original["gpus"]]
    assert len(set(uuids)) == 4
    everything = b"".join(path.read_bytes() for path in (tmp_path / "copy").rglob("*") if path.is_file())
    assert not [gpu["uuid"] for gpu in original["gpus"] if gpu["uuid"].encode() in everything]


@pytest.mark.parametrize("name", ["copy", "copy.tar.gz", "copy.tgz"])
def test_nobody_is_named(source: RecordedHost, tmp_path: Path, name: str) -> None:
    summary = write_record(source, str(tmp_path / name))
    assert summary.processes == (1, 70, 77)
    assert summary.redacted
    assert summary.left_out == ()
    if name == "copy":
        content = {str(path.relative_to(tmp_path / name)): path for path in (tmp_path / name).rglob("*")}
        everything = {path: where.read_bytes() if where.is_file() else b"" for path, where in content.items()}
    else:
        with tarfile.open(tmp_path / name) as packed:
            members = packed.getmembers()
            streams = {member.name: packed.extractfile(member) for member in members}
            everything = {path: stream.read() if stream else b"" for path, stream in streams.items()}
    assert "record.json" in everything
    leaks = [(path, s) for path, data in everything.items() for s in SECRETS if s in path or s.encode() in data]
    assert leaks == []


def test_raw_leaves_everything(source: RecordedHost, tmp_path: Path) -> None:
    copy = written(source, tmp_path / "copy", raw=True)
    assert copy.read("/proc/77/environ") == source.read("/proc/77/environ")
    assert copy.read("/etc/docker/daemon.json") == source.read("/etc/docker/daemon.json")
    assert copy.docker_containers() == source.docker_containers()
    assert copy.unit("docker-c0ffee.scope") == source.unit("docker-c0ffee.scope")
    assert copy.nvml() == source.nvml()
    assert json.loads((tmp_path / "copy/record.json").read_text())["redacted"] is False


def test_what_a_redacted_record_still_says(source: RecordedHost, tmp_path: Path) -> None:
    redactor = Redactor()
    copy = written(source, tmp_path / "copy", redactor=redactor)
    assert copy.pids() == (1, 70, 77)
    assert copy.probe(77, "/dev/nvidia0") == "EPERM"
    new, other = redactor.text(UUID), redactor.text(OTHER_UUID)
    assert new[:8] == other[:8]
    assert new[:9] != other[:9]
    environ = dict(entry.split("=", 1) for entry in (copy.text("/proc/77/environ") or "").strip("\0").split("\0"))
    assert environ == {
        "HOME": "/home/user1",
        "USER": "user1",
        "API_KEY": environ["NVIDIA_API_KEY"],
        "CUDA_VISIBLE_DEVICES": f"{new[:10]},{new[:8]}",
        "CUDA_VISBLE_DEVICES": environ["NVIDIA_API_KEY"],
        "HOSTNAME": "host1",
        "EMPTY": "",
        "NVIDIA_API_KEY": environ["API_KEY"],
    }
    cmdline = (copy.text("/proc/77/cmdline") or "").split("\0")
    assert cmdline[0] == "/home/user1/venv/bin/python3"
    assert cmdline[1] == "train.py"
    assert cmdline[2:4] == [f"--password={environ['API_KEY']}", "--verbose"]
    assert copy.text("/proc/77/cgroup") == "0::/user.slice/user1.slice/docker-c0ffee.scope\n"
    (program,) = copy.device_programs("/user.slice/user1.slice/docker-c0ffee.scope") or ()
    assert program.insns == bytes.fromhex(str(PROGRAM["insns"]))
    assert answer(copy.device_programs, "/user.slice") is Unknown
    assert copy.text("/proc/77/maps") == MAPS.replace("/home/frodo", "/home/user1").split("7f2000-7f3000")[0]
    assert copy.listdir("/proc/77/fd") == ("9",)
    assert copy.readlink("/proc/77/exe") == "/home/user1/venv/bin/python3"
    assert copy.lstat("/proc/77/root/dev/nvidia-uvm") is None
    assert copy.lstat("/proc/77/root/dev/nvidia0") is not None
    assert answer(copy.read, "/proc/88/environ") is Unknown
    assert copy.read("/sys/bus/pci/devices/0000:01:00.0/config") == bytes(range(64))
    kfd = copy.text("/sys/class/kfd/kfd/topology/nodes/1/properties") or ""
    unique = int(kfd.split("unique_id ")[1])
    assert f"GPU-{unique:016x}" == redactor.text(f"GPU-{16452823054567000000:016x}")
    assert copy.kernel_log() == f"[1.0] NVRM: Xid (PCI:0000:01:00): 79, {new} on host1\n"
    unit = copy.unit("docker-c0ffee.scope")
    assert unit is not None
    assert unit["DeviceAllow"] == [["/dev/nvidia0", "rwm"]]
    assert unit["Environment"][1] == f"NVIDIA_VISIBLE_DEVICES={new}"
    assert "ExecStart" not in unit
    assert copy.unit("docker.service") is None
    assert copy.docker_info() == {"CgroupDriver": "systemd", "Name": "host1"}
    container = copy.docker_containers()["c0ffee"]
    assert container["State"] == {"Pid": 77}
    assert container["Mounts"] == [{"Source": "/home/user1/data", "Destination": "/data"}]
    assert "Binds" not in container["HostConfig"]
    daemon = json.loads(copy.text("/etc/docker/daemon.json") or "")
    assert daemon["runtimes"] == FILES["root/etc/docker/daemon.json"]["runtimes"]


def test_of_a_program_only_the_lines_about_gpus(tmp_path: Path) -> None:
    script = "import torch\npassword = 'hunter2'\nos.environ['CUDA_VISIBLE_DEVICES'] = '1'  # frodo\n"
    files = FILES | {"root/home/frodo/train.py": script, "root/etc/environment": "A=hunter2\nCUDA_VISIBLE_DEVICES=1\n"}
    recorder = Recorder(host(tmp_path / "source", files, NODES))
    recorder.read("/home/frodo/train.py")
    recorder.read("/etc/environment")
    copy = written(recorder, tmp_path / "copy")
    assert copy.text("/home/user1/train.py") == ("import torch\n\nos.environ['CUDA_VISIBLE_DEVICES'] = '1'  # user1\n")
    assert copy.text("/etc/environment") == "\nCUDA_VISIBLE_DEVICES=1\n"


def test_a_process_that_sees_the_host_has_no_view_of_its_own(tmp_path: Path) -> None:
    shared = [link("/proc/70/ns/mnt", "mnt:[4026531841]"), link("/proc/77/root", "/srv/jail")]
    recorder = Recorder(host(tmp_path / "source", FILES, [*NODES, *shared]))
    recorder.stat("/proc/70/root/dev/nvidia0")
    recorder.stat("/proc/70/root/dev/nvidia-uvm")
    copy = written(recorder, tmp_path / "copy", pids=(70,))
    assert "/proc/70/root/" not in (tmp_path / "copy/nodes.jsonl").read_text()
    node = copy.stat("/proc/70/root/dev/nvidiactl")
    assert node is not None
    assert node.minor == 255
    assert copy.lstat("/proc/70/root/dev/nvidia-uvm") is None


def test_a_directory_that_was_only_seen_is_not_empty(tmp_path: Path) -> None:
    files = FILES | {"root/sys/class/drm/card0/dev": "226:0\n", "root/sys/class/drm/card1/dev": "226:1\n"}
    nodes = [*NODES, link("/proc/77/root/sys/bus/pci/devices/0000:01:00.0", "../../../devices/x")]
    recorder = Recorder(host(tmp_path / "source", files, nodes))
    recorder.stat("/sys/class/drm")
    recorder.stat("/proc/77/root/sys/bus/pci/devices")
    copy = written(recorder, tmp_path / "copy")
    assert copy.listdir("/sys/class/drm") == ("card0", "card1")
    assert copy.lstat("/sys/class/drm/card2") is None
    node = copy.stat("/proc/77/root/sys/bus/pci/devices")
    assert node is not None
    assert node.type == "d"
    assert answer(copy.lstat, "/proc/77/root/sys/bus/pci/devices/0000:02:00.0") is Unknown


def test_processes_that_ended_are_absent(tmp_path: Path) -> None:
    nvml = {"gpus": [{"index": 0, "processes": [{"pid": 4711, "used_memory_mib": 5}]}]}
    files = FILES | {"absent.json": ["/proc/4711"], "tools/nvml.json": nvml}
    recorder = Recorder(host(tmp_path / "source", files, NODES))
    assert recorder.text("/proc/4711/status") is None
    copy = written(recorder, tmp_path / "copy")
    assert copy.text("/proc/4711/status") is None
    assert answer(copy.text, "/proc/4712/status") is Unknown


def recorded_hosts() -> list[Path]:
    return sorted(path.parent for path in (REPOSITORY / "tests/data/hosts").rglob("record.json"))


@pytest.mark.parametrize("path", recorded_hosts(), ids=lambda path: "-".join(path.parts[-2:]))
def test_a_redacted_record_gives_the_same_findings(tmp_path: Path, path: Path) -> None:
    case = json.loads((path.parent / "case.json").read_text())

    def findings(found: Host) -> list[tuple[str, str, int | None]]:
        report = examine(found, pid=case.get("pid"))
        return [(finding.rule.id, finding.severity, finding.target.pid) for finding in report.findings]

    recorder = Recorder(RecordedHost(str(path)))
    before = findings(recorder)
    pids = () if case.get("pid") is None else (case["pid"],)
    assert findings(written(recorder, tmp_path / "copy", pids=pids)) == before


def test_a_record_of_a_record_of_a_record(source: RecordedHost, tmp_path: Path) -> None:
    first = written(source, tmp_path / "first")
    recorder = Recorder(first)
    second = written(recorder, tmp_path / "second", raw=True)
    assert facts(second, recorder) == facts(first, recorder)


def test_what_was_asked_before_is_recorded_too(source: RecordedHost, tmp_path: Path) -> None:
    recorder = Recorder(source)
    recorder.read("/etc/passwd")
    recorder.stat("/dev/char/195:0")
    with pytest.raises(Unknown):
        recorder.lstat("/opt/x")
    copy = written(recorder, tmp_path / "copy")
    assert (copy.text("/etc/passwd") or "").splitlines()[1] == "user1:x:1000:1000:,,,:/home/user1:/bin/sh"
    assert answer(copy.lstat, "/opt/x") is Unknown


def test_selection(source: RecordedHost) -> None:
    assert select_processes(source) == (1, 70, 77)
    assert select_processes(source, (88,)) == (1, 70, 77, 88)


def test_a_binary_file_that_holds_a_name_is_left_out(tmp_path: Path) -> None:
    files = FILES | {"root/etc/ld.so.cache": b"glibc-ld.so.cache1.1\0/home/frodo/lib/libcuda.so.1\0x"}
    source = host(tmp_path / "source", files, NODES)
    summary = write_record(source, str(tmp_path / "copy"))
    (left_out,) = summary.left_out
    assert left_out.startswith("/etc/ld.so.cache: it holds names")
    assert answer(RecordedHost(str(tmp_path / "copy")).read, "/etc/ld.so.cache") is Unknown
    plain = host(tmp_path / "plain", FILES | {"root/etc/ld.so.cache": b"glibc\0/usr/lib64/libcuda.so.1\0x"}, NODES)
    assert written(plain, tmp_path / "second").read("/etc/ld.so.cache") == plain.read("/etc/ld.so.cache")


def test_this_machine(tmp_path: Path) -> None:
    live = LiveHost(nvml_deadline=1)
    steps: list[str] = []
    copy = written(live, tmp_path / "copy.tar.gz", progress=steps.append, pids=(os.getpid(),))
    assert steps[0] == "the host"
    assert steps[-1] == "writing"
    assert copy.text("/proc/devices") == live.text("/proc/devices")
    assert copy.kernel == live.kernel
    assert copy.cgroup_mode == live.cgroup_mode
    assert os.getpid() in copy.pids()
    assert copy.readlink(f"/proc/{os.getpid()}/root") == "/"
    null = copy.stat(f"/proc/{os.getpid()}/root/dev/null")
    assert null is not None
    assert (null.major, null.minor) == (1, 3)
    assert copy.readlink(f"/proc/{os.getpid()}/ns/mnt") == live.readlink(f"/proc/{os.getpid()}/ns/mnt")
    for path in ("/dev/null", "/dev/nvidia77", "/etc/cdi"):
        here, there = live.stat(path), copy.stat(path)
        assert (here and (here.type, here.major, here.mode)) == (there and (there.type, there.major, there.mode))


# Where it is written


def test_nothing_is_overwritten(source: RecordedHost, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/x").write_text("mine")
    (tmp_path / "file.tar.gz").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    (tmp_path / "empty").mkdir()
    for name in ("full", "file.tar.gz", "link"):
        with pytest.raises(UsageError, match="exists: a record is never written over anything"):
            write_record(source, str(tmp_path / name))
    with pytest.raises(UsageError, match="there is no directory"):
        write_record(source, str(tmp_path / "none/copy"))
    assert (tmp_path / "full/x").read_text() == "mine"
    write_record(source, str(tmp_path / "empty"))
    assert (tmp_path / "empty/record.json").exists()


@pytest.mark.parametrize("name", ["copy", "copy.tar.gz"])
def test_a_failure_leaves_nothing(
    source: RecordedHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(record, "_write_archive", full)
    monkeypatch.setattr(record, "_write_directory", full)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(FailedAndUndone, match="No space left on device; nothing was left there"):
        write_record(source, str(tmp_path / name))
    assert sorted(tmp_path.iterdir()) == before


def test_only_the_owner_may_read_what_was_written(source: RecordedHost, tmp_path: Path) -> None:
    for name in ("copy", "copy.tar.gz"):
        write_record(source, str(tmp_path / name))
        assert (tmp_path / name).stat().st_mode & 0o077 == 0
