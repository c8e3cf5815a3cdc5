# SPDX-License-Identifier: Apache-2.0
"""The gates, from records and against this kernel."""

from __future__ import annotations

import json
import os
import signal
import struct
from pathlib import Path

import pytest

from gpuiso.doctor.gates import explain
from gpuiso.host.live import LiveHost
from tests.records import RecordMaker
from tests.tiers import requires


def verdicts(maker: RecordMaker, path: str, access: str = "rw") -> tuple[str, str | None, str | None]:
    answer = explain(maker.host(), 7, path, access)
    gate = answer.denied_by
    return answer.verdict, None if gate is None else gate.gate, None if gate is None else gate.errno


def test_an_open_way(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    maker.add_process(7)
    answer = explain(maker.host(), 7, "/dev/nvidia0")
    assert answer.verdict == "allow"
    assert [gate.gate for gate in answer.gates] == ["path", "nodev", "mode", "cgroup-v2", "driver"]


def test_the_path(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    maker.add_process(7, own_dev={"/dev/null": (1, 3)})
    assert verdicts(maker, "/dev/nvidia0") == ("deny", "path", "ENOENT")


def test_a_path_that_asks_for_a_directory(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    maker.add_process(7)
    for end in ("/", "/.", "//"):
        assert verdicts(maker, f"/dev/nvidia0{end}") == ("deny", "path", "ENOTDIR")
    assert verdicts(maker, "//dev/./nvidia0")[0] == "allow"


def test_nodev(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    maker.add_process(7)
    maker.files["/proc/7/mountinfo"] = "1 0 8:1 / / rw,nodev - ext4 /dev/sda1 rw\n"
    assert verdicts(maker, "/dev/nvidia0") == ("deny", "nodev", "EACCES")


@pytest.mark.parametrize(
    ("mode", "uid", "access", "expected"),
    [
        ("0600", 0, "rw", ("allow", None, None)),
        ("0600", 1000, "rw", ("deny", "mode", "EACCES")),
        ("0666", 1000, "rw", ("allow", None, None)),
        ("0444", 1000, "rw", ("deny", "mode", "EACCES")),
        ("0444", 1000, "r", ("allow", None, None)),
        ("0060", 1000, "rw", ("deny", "mode", "EACCES")),
    ],
)
def test_the_mode(
    tmp_path: Path, mode: str, uid: int, access: str, expected: tuple[str, str | None, str | None]
) -> None:
    maker = RecordMaker(tmp_path)
    maker.add_process(7, uid=uid)
    maker.add_node("/proc/7/root/dev/nvidia0", 195, 0, mode)
    assert verdicts(maker, "/dev/nvidia0", access) == expected


@requires("kernel")
@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ("u::rw,g::-,o::-,u:65534:rw,m::rw", "allow"),
        ("u::rw,g::-,o::-,u:65534:rw,m::r", "deny"),
        ("u::rw,g::-,o::rw,u:65534:-,m::rw", "deny"),
        ("u::rw,g::-,o::-,g:65534:rw,m::rw", "allow"),
        ("u::rw,g::-,o::rw,g:65534:r,m::rw", "deny"),
        ("u::rw,g::-,o::-,u:1:rw,m::rw", "deny"),
    ],
)
def test_an_access_control_list_decides_as_the_kernel_does(tmp_path: Path, entries: str, expected: str) -> None:
    node = tmp_path / "node"
    os.mknod(node, 0o20660, os.makedev(1, 3))
    for directory in (tmp_path, *list(tmp_path.parents)[:-1]):
        directory.chmod(directory.stat().st_mode | 0o111)
    os.setxattr(node, "system.posix_acl_access", acl(entries))
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
        os.write(told, b"x")
        signal.pause()
        os._exit(0)
    try:
        assert os.read(ready, 1) == b"x"
        answer = explain(LiveHost(), pid, str(node), probe=True)
        assert (answer.verdict, answer.disagreement) == (expected, None)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(ready)
        os.close(told)


def acl(text: str) -> bytes:
    """``u:UID:rw,...`` as the kernel stores it."""
    tags = {("u", False): 1, ("u", True): 2, ("g", False): 4, ("g", True): 8, ("m", False): 16, ("o", False): 32}
    entries = []
    for entry in text.split(","):
        kind, number, letters = entry.split(":")
        permissions = 4 * ("r" in letters) + 2 * ("w" in letters)
        entries.append((tags[kind, bool(number)], permissions, int(number) if number else 0xFFFFFFFF))
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in sorted(entries))


def test_a_group_that_owns_the_node(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    maker.add_process(7, uid=1000)
    maker.add_node("/proc/7/root/dev/nvidia0", 195, 0, "0660")
    maker.nodes["/proc/7/root/dev/nvidia0"]["gid"] = 44
    assert verdicts(maker, "/dev/nvidia0")[0] == "deny"
    maker.files["/proc/7/status"] = str(maker.files["/proc/7/status"]).replace("Groups:\t1000", "Groups:\t27 44")
    assert verdicts(maker, "/dev/nvidia0")[0] == "allow"


def test_root_of_a_user_namespace_does_not_pass_over_the_mode(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    maker.add_process(7)
    maker.add_node("/proc/7/root/dev/nvidia0", 195, 0, "0600")
    maker.nodes["/proc/7/root/dev/nvidia0"]["uid"] = 65534
    maker.files["/proc/7/uid_map"] = maker.files["/proc/7/gid_map"] = "         0     100000      65536\n"
    assert verdicts(maker, "/dev/nvidia0") == ("deny", "mode", "EACCES")
    maker.files["/proc/7/uid_map"] = maker.files["/proc/7/gid_map"] = "         0          0 4294967295\n"
    assert verdicts(maker, "/dev/nvidia0")[0] == "allow"


@pytest.mark.parametrize(
    ("enforce", "label", "expected"),
    [
        ("1\n", "system_u:system_r:container_t:s0:c1,c2\0", ("unknown", "SELinux")),
        ("1\n", "unconfined_u:unconfined_r:unconfined_t:s0-s0:c0.c1023\0", ("allow", None)),
        ("0\n", "system_u:system_r:container_t:s0:c1,c2\0", ("allow", None)),
        (None, "docker-default (enforce)\n", ("allow", "AppArmor")),
        (None, "snap.ollama.ollama (enforce)\n", ("unknown", "AppArmor")),
        (None, "snap.ollama.ollama (complain)\n", ("allow", None)),
        (None, "unconfined\n", ("allow", None)),
    ],
)
def test_security_modules(tmp_path: Path, enforce: str | None, label: str, expected: tuple[str, str | None]) -> None:
    maker = RecordMaker(tmp_path)
    maker.add_process(7)
    maker.files["/proc/7/attr/current"] = label
    maker.files["/sys/fs/selinux/enforce"] = enforce
    answer = explain(maker.host(), 7, "/dev/nvidia0")
    by = next((gate.by for gate in answer.gates if gate.gate == "lsm"), None)
    assert (answer.verdict, by) == expected


def test_a_probe_does_not_speak_for_a_security_module(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    maker.add_process(7)
    maker.files["/proc/7/attr/current"] = "system_u:system_r:container_t:s0\0"
    maker.files["/sys/fs/selinux/enforce"] = "1\n"
    maker.write()
    (tmp_path / "probes.json").write_text('{"7": {}}')
    answer = explain(maker.host(), 7, "/dev/nvidia0")
    assert (answer.verdict, answer.disagreement) == ("unknown", None)


def test_no_driver_for_the_major(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    maker.add_process(7)
    maker.add_node("/proc/7/root/dev/nvidia-uvm", 510, 0)
    assert verdicts(maker, "/dev/nvidia-uvm") == ("deny", "driver", "ENXIO")


def test_a_level_that_may_not_be_asked_is_unknown_unless_another_denies(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    maker.add_process(7)
    maker.cgroups["/job"] = {"device_programs": None}
    answer = explain(maker.host(), 7, "/dev/nvidia0")
    assert answer.verdict == "unknown"
    assert "not permitted" in (answer.unknown_because or "")
    deny_all = "b7000000000000009500000000000000"  # r0 = 0; exit
    maker.cgroups["/"] = {"device_programs": [{"id": 1, "name": "", "tag": "", "attach_flags": 2, "insns": deny_all}]}
    answer = explain(maker.host(), 7, "/dev/nvidia0")
    assert answer.verdict == "deny"
    assert answer.denied_by is not None
    assert (answer.denied_by.where, answer.denied_by.errno) == ("/", "EPERM")


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ("c 195:* rw\n", "allow"),
        ("c 195:* m\nc 195:0 r\n", "deny"),  # the kernel wants one line that covers the whole access
        ("c *:* m\nb *:* m\n", "deny"),
        ("a *:* rwm\n", "unknown"),
    ],
)
def test_the_v1_list(tmp_path: Path, listed: str, expected: str) -> None:
    maker = RecordMaker(tmp_path)
    maker.add_process(7)
    maker.files["/proc/7/cgroup"] = "4:devices:/docker/x\n"
    maker.header["cgroup_mode"] = "legacy"
    maker.files["/sys/fs/cgroup/devices/docker/x/devices.list"] = listed
    assert explain(maker.host(), 7, "/dev/nvidia0").verdict == expected


def test_a_seccomp_filter_is_noted(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    maker.add_process(7)
    assert explain(maker.host(), 7, "/dev/nvidia0").notes == ()
    maker.files["/proc/7/status"] = str(maker.files["/proc/7/status"]).replace("Seccomp:\t0", "Seccomp:\t2")
    answer = explain(maker.host(), 7, "/dev/nvidia0")
    assert answer.verdict == "allow"
    assert "seccomp filter" in answer.notes[0]


def test_only_eperm_speaks_of_a_device_filter(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    maker.add_process(7)
    maker.write()
    for name, gate in (("EPERM", "cgroup-v2"), ("EIO", "probe"), ("ELOOP", "path"), ("EACCES", "mode")):
        (tmp_path / "probes.json").write_text(json.dumps({"7": {"/dev/nvidia0": {"rw": name}}}))
        assert verdicts(maker, "/dev/nvidia0") == ("deny", gate, name)


def test_a_driver_that_lacks_the_minor(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    maker.add_process(7)
    for name, major, minor in (("nvidia7", 195, 7), ("nvidia-uvm9", 238, 9), ("mem", 1, 99)):
        maker.add_node(f"/proc/7/root/dev/{name}", major, minor)
    assert verdicts(maker, "/dev/nvidia7") == ("deny", "driver", "ENXIO")
    assert verdicts(maker, "/dev/nvidia-uvm9") == ("deny", "driver", "ENXIO")
    answer = explain(maker.host(), 7, "/dev/mem")
    assert "whether it knows minor 99 is not known" in answer.gates[-1].says


def test_a_hidden_mount_and_a_link_in_a_record(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    maker.add_process(7)
    maker.files["/proc/7/mountinfo"] = (
        "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "2 1 0:40 / /dev/sub rw,nodev - tmpfs hidden rw\n"
        "3 1 0:5 / /dev rw - devtmpfs udev rw\n"
        "4 1 0:41 / /data rw,nodev - tmpfs data rw\n"
    )
    maker.add_node("/proc/7/root/dev/sub/n", 195, 0)
    maker.add_node("/proc/7/root/data/n", 195, 0)
    maker.nodes["/proc/7/root/dev/l"] = {"path": "/proc/7/root/dev/l", "type": "l", "target": "../data/n"}
    assert verdicts(maker, "/dev/sub/n")[0] == "allow"
    assert verdicts(maker, "/dev/l") == ("deny", "nodev", "EACCES")
