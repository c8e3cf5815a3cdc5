# SPDX-License-Identifier: Apache-2.0
"""Probing in a process's place, and the passive gates beside it: they must agree."""

from __future__ import annotations

import gc
import os
import signal
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from gpuiso.doctor.gates import explain
from gpuiso.errors import NotFound, Unknown
from gpuiso.host import probe as probe_module
from gpuiso.host.live import LiveHost
from gpuiso.host.probe import probe_access
from gpuiso.kernel.bpf import prog_attach, prog_load
from gpuiso.kernel.clone3 import clone3
from tests.tiers import cgroup2_mount, requires

pytestmark = requires("kernel")

DENY_ALL = bytes.fromhex("b7000000000000009500000000000000")  # r0 = 0; exit


@contextmanager
def child(prepare: Callable[[], None], cgroup_fd: int | None = None) -> Iterator[int]:
    """A child that has done ``prepare`` and waits."""
    ready, told = os.pipe()
    pid, pidfd = clone3(cgroup_fd=cgroup_fd)
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
        os.close(pidfd)


@pytest.fixture
def denied_cgroup() -> Iterator[int]:
    """A descriptor of a cgroup whose program denies every device."""
    mount = cgroup2_mount()
    assert mount is not None
    path = mount / f"gpuiso-probe-{os.getpid()}"
    path.mkdir()
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    program = prog_load(DENY_ALL)
    prog_attach(directory, program)
    yield directory
    os.close(program)
    os.close(directory)
    path.rmdir()


def descriptors() -> set[str]:
    """Numbers and what is behind them, without the one that looks."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found.add(f"{number} {os.readlink(f'/proc/self/fd/{number}')}")
    return found


def children() -> set[int]:
    """Of every thread of this process, those that ended and were not waited for among them."""
    lists = Path("/proc/self/task").glob("*/children")
    return {int(pid) for path in lists for pid in path.read_text().split()}


def nobody() -> None:
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)


def passive(pid: int, node: str) -> str | None:
    gate = explain(LiveHost(), pid, node).denied_by
    return None if gate is None else gate.errno


def test_a_process_like_this_one() -> None:
    with child(lambda: None) as pid:
        assert probe_access(LiveHost(), pid, ["/dev/null", "/dev/no-such-node"]) == (None, "ENOENT")


def test_the_device_program_of_its_cgroup(denied_cgroup: int) -> None:
    with child(lambda: None, denied_cgroup) as pid:
        assert probe_access(LiveHost(), pid, ["/dev/null", "/dev/zero"]) == ("EPERM", "EPERM")
        assert passive(pid, "/dev/null") == "EPERM"


def test_its_user(tmp_path: Path) -> None:
    node = tmp_path / "node"
    os.mknod(node, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    for place in (tmp_path, *tmp_path.parents):
        if place != Path("/"):
            place.chmod(place.stat().st_mode | 0o111)
    with child(nobody) as pid:
        assert probe_access(LiveHost(), pid, [str(node), "/dev/null"]) == ("EACCES", None)
        assert passive(pid, str(node)) == "EACCES"


def test_its_root(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    os.mknod(tmp_path / "dev" / "only", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    os.chmod(tmp_path / "dev" / "only", 0o666)
    with child(lambda: os.chroot(tmp_path)) as pid:
        assert probe_access(LiveHost(), pid, ["/dev/only", "/dev/null"]) == (None, "ENOENT")
        assert passive(pid, "/dev/null") == "ENOENT"


def test_a_frozen_cgroup_is_unknown_and_not_waited_for(denied_cgroup: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_module, "DEADLINE", 0.2)
    freeze = Path(os.readlink(f"/proc/self/fd/{denied_cgroup}")) / "cgroup.freeze"
    before = children()
    with child(lambda: None, denied_cgroup) as pid:
        freeze.write_text("1")
        try:
            with pytest.raises(Unknown, match="may be frozen"):
                probe_access(LiveHost(), pid, ["/dev/null"])
        finally:
            freeze.write_text("0")
        # The probe's own child was killed and not waited for, as it might not end before the thaw.
        for killed in children() - before - {pid}:
            os.waitpid(killed, 0)


def test_no_such_process() -> None:
    with pytest.raises(NotFound, match="no process"):
        probe_access(LiveHost(), 4194305, ["/dev/null"])


def test_nothing_is_left_open() -> None:
    with child(lambda: None) as pid:
        gc.collect()  # what other tests left is closed now, and not between the two looks
        before = descriptors()
        probe_access(LiveHost(), pid, ["/dev/null"])
        assert descriptors() - before == set()
