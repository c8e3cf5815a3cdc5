# SPDX-License-Identifier: Apache-2.0
"""The gates of the path, the mount and the modes beside what open(2) meets in this kernel."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuiso.doctor.gates import explain
from gpuiso.host.live import LiveHost
from gpuiso.kernel.capability import CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, capset, prctl_set_keepcaps
from gpuiso.kernel.libc import libc
from gpuiso.kernel.ns import CLONE_NEWNS, CLONE_NEWUSER
from tests.tiers import requires

MS_NODEV, MS_REC, MS_PRIVATE = 4, 0x4000, 1 << 18


def mount(source: str | None, target: Path | str, fstype: str | None, flags: int) -> None:
    words = [None if word is None else os.fsencode(word) for word in (source, target, fstype)]
    assert libc.mount(*words, ctypes.c_ulong(flags), None) == 0, os.strerror(ctypes.get_errno())


@contextmanager
def waiting(prepare: Callable[[], None]) -> Iterator[int]:
    """A child that has done ``prepare`` and waits."""
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            prepare()
            os.write(told, b"x")
            signal.pause()
        finally:
            os._exit(1)
    os.close(told)
    try:
        assert os.read(ready, 1) == b"x"
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(ready)


def own_view(directory: Path) -> None:
    """A mount namespace with a tmpfs on ``directory``, where nodes of many kinds lie."""
    assert libc.unshare(CLONE_NEWNS) == 0
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    mount("t", directory, "tmpfs", 0)
    for name in ("priv", "nodev", "cov", "cov/sub", "cov2", "cov2/sub", "sticky"):
        (directory / name).mkdir(mode=0o755)
    mount("t", directory / "nodev", "tmpfs", MS_NODEV)
    mount("t", directory / "cov/sub", "tmpfs", MS_NODEV)
    mount("t", directory / "cov", "tmpfs", 0)
    mount("t", directory / "cov2/sub", "tmpfs", 0)
    mount("t", directory / "cov2", "tmpfs", MS_NODEV)
    for name in ("cov/sub", "cov2/sub"):
        (directory / name).mkdir()
    modes = {"priv/n": 0o666, "nodev/n": 0o666, "cov/sub/n": 0o666, "cov2/sub/n": 0o666, "none": 0, "owned": 0o600}
    for name, mode in {**modes, "read": 0o444, "any": 0o666}.items():
        os.mknod(directory / name, stat.S_IFCHR, os.makedev(1, 3))
        (directory / name).chmod(mode)
    os.chown(directory / "owned", 65534, 65534)
    (directory / "link").symlink_to("nodev/n")
    (directory / "way").symlink_to(directory / "priv")
    (directory / "sticky" / "link").symlink_to(directory / "any")
    os.lchown(directory / "sticky" / "link", 12345, 12345)
    (directory / "sticky").chmod(0o1777)
    (directory / "priv").chmod(0o700)
    directory.chmod(0o755)


VIEW = (
    *("any", "none", "owned", "read", "priv/n", "way/n", "nodev/n", "link", "cov/sub/n", "cov2/sub/n"),
    *("sticky/link", "sticky/../any", "nodev/../any"),
)


def become_nobody(*capabilities: int) -> None:
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    prctl_set_keepcaps(keep=True)
    os.setresuid(65534, 65534, 65534)
    held = sum(1 << number for number in capabilities)
    capset(held, held)


def user_namespace_of_nobody() -> None:
    become_nobody()
    libc.prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: else its own map belongs to root
    assert libc.unshare(CLONE_NEWUSER) == 0
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text("0 65534 1")
    Path("/proc/self/gid_map").write_text("0 65534 1")


def user_namespace_of_root() -> None:
    assert libc.unshare(CLONE_NEWUSER) == 0
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text("0 0 1")
    Path("/proc/self/gid_map").write_text("0 0 1")


@requires("kernel")
@pytest.mark.parametrize(
    "become",
    [
        lambda: None,
        become_nobody,
        lambda: become_nobody(CAP_DAC_OVERRIDE),
        lambda: become_nobody(CAP_DAC_READ_SEARCH),
        user_namespace_of_nobody,
        user_namespace_of_root,
        lambda: libc.setfsuid(65534),
        lambda: capset(0, 0),
    ],
    ids=["root", "nobody", "override", "search", "userns-nobody", "userns-root", "fsuid", "nocaps"],
)
def test_what_is_read_is_what_open_meets(tmp_path: Path, become: Callable[[], object]) -> None:
    for directory in (tmp_path, *list(tmp_path.parents)[:-1]):
        directory.chmod(directory.stat().st_mode | 0o111)
    answers, told = os.pipe()

    def prepare() -> None:
        own_view(tmp_path)
        become()
        met = [tried(str(tmp_path / name), access) for name in VIEW for access in ("r", "rw")]
        os.write(told, json.dumps(met).encode())

    with waiting(prepare) as pid:
        met = json.loads(os.read(answers, 1 << 16))
        host = LiveHost()
        found = []
        for name in VIEW:
            for access in ("r", "rw"):
                answer = explain(host, pid, str(tmp_path / name), access, probe=True)
                assert answer.disagreement is None, (name, access)
                found.append("allow" if answer.verdict == "allow" else answer.denied_by and answer.denied_by.errno)
    os.close(answers)
    os.close(told)
    asked = [(name, access) for name in VIEW for access in ("r", "rw")]
    assert dict(zip(asked, found, strict=True)) == dict(zip(asked, met, strict=True))


def tried(path: str, access: str) -> str:
    try:
        os.close(os.open(path, os.O_RDWR if access == "rw" else os.O_RDONLY))
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "allow"


@requires("kernel")
def test_a_file_system_mounted_in_a_user_namespace_counts_as_nodev(tmp_path: Path) -> None:
    def prepare() -> None:
        user_namespace_of_root()
        assert libc.unshare(CLONE_NEWNS) == 0
        mount("t", tmp_path, "tmpfs", 0)

    with waiting(prepare) as pid:
        script = f"mknod -m 666 {tmp_path}/n c 1 3"
        subprocess.run(["nsenter", "-t", str(pid), "-m", "sh", "-c", script], check=True)
        for probe in (False, True):
            answer = explain(LiveHost(), pid, str(tmp_path / "n"), probe=probe)
            assert answer.denied_by is not None
            assert answer.denied_by.gate == "nodev"
            assert "user namespace" in answer.denied_by.says
        assert explain(LiveHost(), pid, "/dev/null", probe=True).verdict == "allow"


@requires("kernel")
def test_a_process_in_a_chroot_has_a_mount_all_the_same(tmp_path: Path) -> None:
    os.mknod(tmp_path / "n", 0o20666, os.makedev(1, 3))
    with waiting(lambda: os.chroot(tmp_path)) as pid:
        assert explain(LiveHost(), pid, "/n", probe=True).verdict == "allow"


@requires("kernel")
@pytest.mark.parametrize("path", ["/dev/stdin", "/dev/fd/0", "/proc/self/root/dev/null", "/proc/{pid}/root/dev/null"])
def test_a_magic_link_is_unknown(path: str) -> None:
    for probe in (False, True):
        answer = explain(LiveHost(), os.getpid(), path.format(pid=os.getpid()), probe=probe)
        assert answer.verdict == "unknown"
        assert "it leads through" in (answer.unknown_because or "")


@requires("kernel")
def test_what_a_probe_cannot_answer() -> None:
    answer = explain(LiveHost(), os.getpid(), "/dev/null", "m", probe=True)
    assert answer.probed is not None
    assert answer.probed.verdict == "unknown"
    assert explain(LiveHost(), os.getpid(), "/dev", probe=True).verdict == "deny"
    with waiting(become_nobody) as pid:
        denied = explain(LiveHost(), pid, "/dev/null", "m").denied_by
        assert denied is not None
        assert (denied.by, denied.errno) == ("CAP_MKNOD", "EPERM")
