# SPDX-License-Identifier: Apache-2.0
"""Views of processes whose file systems never answer."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpuiso.errors import Unknown
from gpuiso.host import view
from gpuiso.host.live import LiveHost
from gpuiso.host.protocol import Node
from gpuiso.host.view import Views
from tests.host.records import host
from tests.tiers import requires

ORDINARY = "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:5 / /dev rw - devtmpfs udev rw\n"
SERVED = f"{ORDINARY}3 1 0:9 / /data rw - fuse.sshfs sshfs rw\n"
NO_ROOT = "2 1 0:5 / /dev rw - devtmpfs udev rw\n"


def views(tmp_path: Path, pid: int, mountinfo: str) -> Views:
    """Of a process that is in no namespace we can see, so that its mounts decide."""
    return Views(host(tmp_path, {f"root/proc/{pid}/mountinfo": mountinfo}))


def asker(path: str) -> int:
    return os.getpid()


def sleeper(path: str) -> int:
    if path.endswith("silent"):
        time.sleep(60)
    return os.getpid()


@pytest.mark.parametrize(("mountinfo", "forked"), [(ORDINARY, False), (SERVED, True), (NO_ROOT, True)])
def test_a_child_looks_where_a_look_may_hang(mountinfo: str, forked: bool, tmp_path: Path) -> None:
    found = views(tmp_path, 999999999, mountinfo)
    assert (found.ask(asker, "/proc/999999999/root/dev/x") != os.getpid()) == forked
    assert found.ask(asker, "/proc/999999999/status") == os.getpid()


def test_one_child_answers_all_questions(tmp_path: Path) -> None:
    found = views(tmp_path, 999999999, SERVED)
    assert len({found.ask(asker, f"/proc/999999999/root/{name}") for name in "abc"}) == 1


def question(path: str) -> Node | None:
    if path.endswith("closed"):
        raise Unknown(path, "not permitted to read it")
    return None if path.endswith("absent") else Node(path, "f", 0o644, size=1 << 20)


def test_answers_come_as_they_are(tmp_path: Path) -> None:
    found = views(tmp_path, 999999999, SERVED)
    base = "/proc/999999999/root"
    assert found.ask(question, f"{base}/absent") is None
    assert found.ask(question, f"{base}/file") == Node(f"{base}/file", "f", 0o644, size=1 << 20)
    with pytest.raises(Unknown, match="closed: not permitted to read it"):
        found.ask(question, f"{base}/closed")


def test_a_silent_view_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "DEADLINE", 0.05)
    found = views(tmp_path, 999999999, SERVED)
    with pytest.raises(Unknown, match="does not answer"):
        found.ask(sleeper, "/proc/999999999/root/silent")
    with pytest.raises(Unknown, match="does not answer"):
        found.ask(sleeper, "/proc/999999999/root/other")


SERVER = """
import ctypes, os, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(0x00020000) or libc.mount(None, b"/", None, 0x44000, None):
    sys.exit("unshare")
fd = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={fd},rootmode=40000,user_id=0,group_id=0,allow_other"
if libc.mount(b"silent", b"/dev", b"fuse", 0, options.encode()):
    sys.exit("mount")
length, code, unique = struct.unpack_from("IIQ", os.read(fd, 1 << 20))
out = struct.pack("IIIIHHIIHHI28x", 7, 31, 65536, 0, 12, 9, 65536, 1, 0, 0, 0)
os.write(fd, struct.pack("IiQ", 16 + len(out), 0, unique) + out)
print("up", flush=True)
time.sleep(60)
"""


@requires("kernel")
@pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="no /dev/fuse")
def test_a_process_whose_dev_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "DEADLINE", 0.2)
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == "up\n"
            here = LiveHost()
            for _ in range(2):
                with pytest.raises(Unknown, match="does not answer"):
                    here.stat(f"/proc/{server.pid}/root/dev/nvidia0")
            assert here.readlink(f"/proc/{server.pid}/root") == "/"
        finally:
            server.kill()
