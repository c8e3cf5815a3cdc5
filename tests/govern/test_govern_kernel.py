# SPDX-License-Identifier: Apache-2.0
"""The governor on real cgroups, with a child that plays NVML: a process spins, and is held to its share."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuiso.errors import NotFound, NotSupported
from gpuiso.govern.cgroup import GovernedCgroup
from gpuiso.govern.follow import Follower
from gpuiso.govern.governor import Governor
from gpuiso.govern.guardian import Guardian
from gpuiso.govern.hold import hold_thawed
from gpuiso.govern.registry import register, unregister
from gpuiso.host import nvml_usage_child
from gpuiso.host.nvml_usage import UsageReader
from gpuiso.policy.limits import parse_gpu_max
from tests.tiers import cgroup2_mount, requires

pytestmark = requires("kernel")

# Plays NVML: what a process spent of one processor stands for its GPU time.
_FAKE = """
import json, os, sys, time
pid = int(os.environ["GOVERNED_PID"])
tick = os.sysconf("SC_CLK_TCK")
def spent():
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / tick
last, before = time.monotonic(), spent()
while True:
    time.sleep(0.2)
    now, used = time.monotonic(), spent()
    percent = round(100 * min(1.0, (used - before) / (now - last)))
    os.write(1, (json.dumps({"now": now, "samples": [[0, pid, now, percent]]}) + "\\n").encode())
    last, before = now, used
    if os.environ.get("GOVERNED_HANG") and now > float(os.environ["GOVERNED_HANG"]):
        time.sleep(600)
"""


@pytest.fixture
def spinner() -> Iterator[tuple[Path, int]]:
    """A cgroup and a process in it that uses all the time it gets."""
    mount = cgroup2_mount()
    assert mount is not None
    directory = mount / f"gpuiso-govern-{os.getpid()}"
    directory.mkdir()
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", "while True: pass"])
    (directory / "cgroup.procs").write_text(str(process.pid))
    yield directory, process.pid
    (directory / "cgroup.freeze").write_text("0")
    process.kill()
    process.wait()
    for _ in range(100):
        try:
            directory.rmdir()
            return
        except OSError:
            time.sleep(0.01)


def frozen(directory: Path) -> bool:
    return "frozen 1" in (directory / "cgroup.events").read_text()


def wait_until(condition: Callable[[], bool], seconds: float = 10) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.002)
    return False


def governor(
    directory: Path, pid: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: str = "30000 100000"
) -> Governor:
    program = tmp_path / "fake.py"
    program.write_text(_FAKE)
    monkeypatch.setenv("GOVERNED_PID", str(pid))
    cgroup = GovernedCgroup(
        str(directory.parent), f"/{directory.name}", parse_gpu_max(share), holds=str(tmp_path / "holds")
    )
    return Governor([cgroup], UsageReader(program=str(program)))


def used(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_spinning_process_is_held_to_its_share_and_thawed_in_the_end(
    spinner: tuple[Path, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, pid = spinner
    loop = governor(directory, pid, tmp_path, monkeypatch)
    before = used(pid)
    loop.run(6)
    assert 0.1 < (used(pid) - before) / 6 < 0.45  # a busy machine gives less; never all of it
    assert wait_until(lambda: not frozen(directory))


def test_killed_with_9_while_frozen_nothing_stays_frozen(
    spinner: tuple[Path, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, pid = spinner
    loop = governor(directory, pid, tmp_path, monkeypatch, "2000 100000")
    child = os.fork()
    if child == 0:
        try:
            loop.run(60)
        finally:
            os._exit(0)
    try:
        assert wait_until(lambda: frozen(directory))
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    # The parent's copy of the pipe keeps the guardian waiting for a heartbeat that does not come.
    assert wait_until(lambda: not frozen(directory), 5)
    loop.close()


def test_a_governor_that_is_stopped_is_noticed(
    spinner: tuple[Path, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, pid = spinner
    loop = governor(directory, pid, tmp_path, monkeypatch, "2000 100000")
    child = os.fork()
    if child == 0:
        try:
            loop.run(60)
        finally:
            os._exit(0)
    try:
        assert wait_until(lambda: frozen(directory))
        os.kill(child, signal.SIGSTOP)
        assert wait_until(lambda: not frozen(directory), 5)
        time.sleep(0.2)
        os.kill(child, signal.SIGCONT)
        assert wait_until(lambda: frozen(directory))  # and it takes up its work again
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        loop.close()


def test_nothing_is_held_while_nvml_hangs(
    spinner: tuple[Path, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, pid = spinner
    monkeypatch.setenv("GOVERNED_HANG", str(time.monotonic() + 1))
    told: list[str] = []
    loop = governor(directory, pid, tmp_path, monkeypatch, "2000 100000")
    loop._tell = told.append
    loop.run(4)
    assert told[0] == "NVML does not answer: nothing is held until it does"
    assert not frozen(directory)


def test_a_hold_keeps_it_thawed(spinner: tuple[Path, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, pid = spinner
    loop = governor(directory, pid, tmp_path, monkeypatch, "2000 100000")
    with hold_thawed(f"/{directory.name}", str(tmp_path / "holds")):
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            loop.tick()
            assert not frozen(directory)

    def frozen_after_a_tick() -> bool:
        loop.tick()
        return frozen(directory)

    assert wait_until(frozen_after_a_tick)
    loop.close()


def test_a_cgroup_that_went_and_came_again_is_held_again(tmp_cgroup: Path, cgroup2_root: Path, tmp_path: Path) -> None:
    """As that of a service that is restarted, faster than anybody looks."""
    directory = tmp_cgroup / "service"
    path = f"/{directory.relative_to(cgroup2_root)}"
    registry = str(tmp_path / "registry")
    told: list[str] = []
    directory.mkdir()
    register(path, parse_gpu_max("50000 100000"), registry)
    governor = Governor([], UsageReader(), told.append)
    try:
        follower = Follower(governor, str(cgroup2_root), told.append, registry=registry, holds=str(tmp_path / "holds"))
        follower.look()
        (first,) = governor.cgroups
        follower.look()
        assert governor.cgroups == [first]
        directory.rmdir()
        directory.mkdir()
        assert not first.alive
        follower.look()
        (second,) = governor.cgroups
        assert second.alive
        assert told == [f"{path}: holding 50000 100000"] * 2
        # The governor may be the first to notice.
        directory.rmdir()
        governor.tick()
        assert governor.cgroups == []
        directory.mkdir()
        follower.look()
        assert [cgroup.alive for cgroup in governor.cgroups] == [True]
        unregister(path, registry)
        follower.look()
        assert governor.cgroups == []
    finally:
        governor.close()


def test_a_guardian_that_dies_is_replaced(spinner: tuple[Path, int]) -> None:
    directory, _ = spinner
    guardian = Guardian([str(directory / "cgroup.freeze")])
    first = guardian.pid
    os.kill(first, signal.SIGKILL)

    def replaced() -> bool:
        guardian.beat()
        return guardian.pid != first

    assert wait_until(replaced)
    guardian.close()


def test_what_cannot_be_governed(tmp_path: Path) -> None:
    mount = str(cgroup2_mount())
    half = parse_gpu_max("50000")
    with pytest.raises(NotFound, match="no cgroup /nothing"):
        GovernedCgroup(mount, "/nothing", half, holds=str(tmp_path))
    with pytest.raises(NotSupported, match="root cgroup"):
        GovernedCgroup(mount, "/", half, holds=str(tmp_path))
    with pytest.raises(NotSupported, match="cannot be held by freezing"):
        GovernedCgroup(mount, "/x", parse_gpu_max("1000 200000"), holds=str(tmp_path))
    with pytest.raises(NotSupported, match="nothing to govern"):
        GovernedCgroup(mount, "/", parse_gpu_max("max"), holds=str(tmp_path))


def test_the_child_says_so_when_there_is_no_nvml() -> None:
    done = subprocess.run(
        [sys.executable, "-I", nvml_usage_child.__file__, "/nonexistent", "0.1"],
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode != 0
