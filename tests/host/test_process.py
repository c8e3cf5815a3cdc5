# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuiso.errors import NotFound, Unknown
from gpuiso.host import process
from gpuiso.host.live import LiveHost
from gpuiso.host.mounts import covering_mount, mounts
from tests.records import RecordMaker


def test_this_process() -> None:
    host = LiveHost()
    me = process.status(host, os.getpid())
    assert (me.uid, me.gid, me.ppid) == (os.geteuid(), os.getegid(), os.getppid())
    assert me.groups == frozenset(os.getgroups())
    assert process.environ(host, os.getpid()).get("PATH") is not None
    assert process.start_time(host, os.getpid()) > 0
    assert os.getppid() in tuple(process.ancestors(host, os.getpid()))
    with open("/dev/null") as null:
        held = process.device_descriptors(host, os.getpid(), ("/dev/null",))
        assert held["/dev/null"] >= 1
        assert null.readable()


def test_no_such_process() -> None:
    host = LiveHost()
    for question in (process.status, process.environ, process.start_time, process.cgroups, mounts):
        with pytest.raises(NotFound, match="no process 4194305"):
            question(host, 4194305)
    assert process.command_name(host, 4194305) == "?"


def test_the_first_of_two_equal_names_counts(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    maker.add_process(7)
    maker.files["/proc/7/environ"] = "A=1\0A=2\0WITHOUT\0EMPTY=\0"
    assert process.environ(maker.host(), 7) == {"A": "1", "EMPTY": ""}


def test_a_name_with_a_parenthesis_and_spaces(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    maker.add_process(7)
    maker.files["/proc/7/stat"] = "7 (a) b (c) S 1 " + "0 " * 17 + "99 0 0\n"
    assert process.start_time(maker.host(), 7) == 99


def test_a_damaged_status_is_unknown(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    maker.add_process(7)
    maker.files["/proc/7/status"] = "Name:\tx\n"
    with pytest.raises(Unknown, match="not in the form"):
        process.status(maker.host(), 7)


def test_cgroups_of_a_hybrid_host(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    maker.add_process(7)
    maker.files["/proc/7/cgroup"] = "5:cpu,cpuacct:/a\n4:devices:/b\n0::/c:d\n"
    assert process.cgroups(maker.host(), 7) == {"cpu": "/a", "cpuacct": "/a", "devices": "/b", "": "/c:d"}
    assert process.unified_cgroup(maker.host(), 7) == "/c:d"


def test_the_covering_mount(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    maker.add_process(7)
    maker.files["/proc/7/mountinfo"] = (
        "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "2 1 0:5 / /dev rw,nosuid shared:2 - devtmpfs udev rw\n"
        "3 2 0:6 / /dev/a\\040b rw,nodev - tmpfs tmpfs rw\n"
        "4 2 0:7 / /dev rw,nodev - tmpfs over rw\n"
    )
    table = mounts(maker.host(), 7)
    found = [covering_mount(table, path) for path in ("/etc/x", "/dev/nvidia0", "/dev/a b/x", "/devices")]
    assert [mount and (mount.point, mount.source) for mount in found] == [
        ("/", "/dev/sda1"),
        ("/dev", "over"),
        ("/dev", "over"),  # what lies below a mount that was covered is not reached any more
        ("/", "/dev/sda1"),
    ]
