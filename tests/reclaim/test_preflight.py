# SPDX-License-Identifier: Apache-2.0
"""Every reason not to checkpoint a process, before anything is done to it."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuiso.errors import NotFound, NotPermitted, NotSupported, Unknown
from gpuiso.host.gpu_memory import GpuMemory
from gpuiso.reclaim.checkpoint import CheckpointHelper
from gpuiso.reclaim.host_memory import rooms
from gpuiso.reclaim.preflight import Reason
from gpuiso.reclaim.session import Session
from gpuiso.reclaim.take import Options, look, take
from gpuiso.reclaim.target import Target
from gpuiso.reclaim.usage import Usage
from tests.reclaim.world import World, make_session
from tests.tiers import requires


@pytest.fixture
def session(world: World) -> Iterator[Session]:
    session = make_session(world)
    yield session
    session.close()


def reasons(session: Session, pid: int) -> list[str]:
    with Target.open(session.host, pid) as target:
        return [reason.kind for reason in look(session, target)[1]]


def test_nothing_speaks_against_it(world: World, session: Session) -> None:
    with Target.open(session.host, world.target(gpu=3, mib=900)) as target:
        case, found, unknown = look(session, target)
    assert (found, unknown) == ((), ())
    assert [gpu.uuid for gpu in case.gpus] == [world.uuids[3]]
    assert case.usage.footprint() == 900 << 20
    assert case.usage.descriptors["/dev/nvidia3"] == 2


def test_what_is_left_in_words() -> None:
    usage = Usage({"/dev/nvidia0": 1, "/dev/nvidia1": 2}, frozenset(), {})
    assert usage.left() == ["1 descriptor on /dev/nvidia0", "2 descriptors on /dev/nvidia1"]


def test_no_cuda(world: World, session: Session) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        with pytest.raises(NotSupported, match="uses no CUDA"), Target.open(session.host, process.pid) as target:
            take(session, [target], Options())
        process.kill()


def test_gpuiso_itself(session: Session) -> None:
    assert reasons(session, os.getpid()) == ["self", "no-cuda"]


def test_a_kernel_thread(session: Session) -> None:
    thread = next((pid for pid in session.host.pids() if session.host.text(f"/proc/{pid}/cmdline") == ""), None)
    if thread is None:
        pytest.skip("no kernel thread is visible here")
    assert "kernel-thread" in reasons(session, thread)


def test_a_thread_is_no_process(world: World, session: Session) -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        with pytest.raises(NotSupported, match=f"is a thread of process {os.getpid()}"):
            Target.open(session.host, thread.native_id or 0)
    finally:
        done.set()
        thread.join()


def test_no_process(session: Session) -> None:
    with pytest.raises(NotFound, match="no process 4194305"):
        Target.open(session.host, 4194305)
    with pytest.raises(NotFound, match="another one"):
        Target.open(session.host, os.getpid(), start=1)


def test_a_zombie(session: Session) -> None:
    with subprocess.Popen(["true"]) as process:
        while (session.host.text(f"/proc/{process.pid}/stat") or "").rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.01)
        with pytest.raises(NotFound, match="ended"):
            Target.open(session.host, process.pid)


def test_stopped(world: World, session: Session) -> None:
    pid = world.target()
    os.kill(pid, signal.SIGSTOP)
    while world.state(pid) != "T":
        time.sleep(0.01)
    assert reasons(session, pid) == ["stopped", "driver"]


@requires("kernel")
def test_frozen(world: World, session: Session, tmp_cgroup: Path) -> None:
    pid = world.target()
    (tmp_cgroup / "cgroup.procs").write_text(str(pid))
    (tmp_cgroup / "cgroup.freeze").write_text("1")
    while "frozen 1" not in (tmp_cgroup / "cgroup.events").read_text():
        time.sleep(0.01)
    assert reasons(session, pid) == ["frozen", "driver"]
    (tmp_cgroup / "cgroup.freeze").write_text("0")


def test_the_driver_kills_processes(world: World, session: Session) -> None:
    session.inventory = dataclasses.replace(session.inventory, driver_version="610.57.04")
    with Target.open(session.host, world.target()) as target:
        (reason,) = look(session, target)[1]
    assert reason.kind == "driver-bug"
    assert "610.57.04" in reason.says


def test_mig(world: World, session: Session) -> None:
    gpus = tuple(dataclasses.replace(gpu, mig_enabled=gpu.index == 1) for gpu in session.inventory.gpus)
    session.inventory = dataclasses.replace(session.inventory, gpus=gpus)
    assert reasons(session, world.target(gpu=0)) == []
    assert reasons(session, world.target(gpu=1)) == ["mig"]


def test_a_profiler(world: World, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_INJECTION64_PATH", "/opt/nsys/libToolsInjection64.so")
    assert reasons(session, world.target()) == ["profiler"]


def test_mps(world: World, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of MPS's name that has the same GPU open."""
    monkeypatch.setenv("FAKE_COMM", "nvidia-cuda-mps-server")
    server = world.target(gpu=1)
    monkeypatch.delenv("FAKE_COMM")
    assert reasons(session, world.target(gpu=1)) == ["mps"]
    assert reasons(session, world.target(gpu=2)) == []
    assert reasons(session, server) == ["mps"]


def test_not_permitted(world: World, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuiso.reclaim.preflight.CAP_SYS_PTRACE", 63)  # a capability that nobody has
    pid = world.target()
    with Target.open(session.host, pid) as target, pytest.raises(NotPermitted, match="CAP_SYS_PTRACE"):
        take(session, [target], Options())


def test_nvml_does_not_answer(world: World, session: Session) -> None:
    """Without it a restore could run into too little memory, which cannot be undone."""

    def silent() -> tuple[GpuMemory, ...]:
        raise Unknown("NVML", "no answer within 5 s: the driver may hang")

    session.memory = silent
    assert reasons(session, world.target()) == ["nvml"]


def test_half_way_already(world: World, session: Session) -> None:
    pid = world.target()
    session.helper.call("lock", pid, deadline=5)
    assert reasons(session, pid) == ["state"]
    session.helper.call("back", pid, deadline=5)


def test_the_machine_has_too_little_memory(world: World, session: Session) -> None:
    (world.directory / "meminfo").write_text("MemTotal: 2000000 kB\nMemAvailable: 1000000 kB\n")
    assert reasons(session, world.target(mib=600)) == []
    with Target.open(session.host, world.target(mib=900)) as target:
        (reason,) = look(session, target)[1]
    assert reason == Reason(
        "host-memory",
        "the copy of its GPU memory takes 900 MiB of host memory, and /proc/meminfo (MemAvailable) leaves 976 MiB",
    )


def test_all_reasons_at_once(world: World, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_INJECTION64_PATH", "/opt/tool.so")
    (world.directory / "meminfo").write_text("MemAvailable: 1000 kB\n")
    session.inventory = dataclasses.replace(session.inventory, driver_version="610.57.04")
    pid = world.target()
    before = sorted(path.name for path in world.directory.iterdir())
    with Target.open(session.host, pid) as target, pytest.raises(NotSupported) as caught:
        take(session, [target], Options())
    for word in ("610.57.04", "CUDA_INJECTION64_PATH", "MemAvailable"):
        assert word in caught.value.message
    assert session.records.all() == ()
    assert set(before) <= {path.name for path in world.directory.iterdir()}


def test_an_old_driver_is_one_reason_of_several(world: World, session: Session) -> None:
    def connect() -> CheckpointHelper:
        raise NotSupported("libcuda.so.1 has no checkpoint calls: the driver is older than R570")

    session.connect = connect
    (world.directory / "meminfo").write_text("MemAvailable: 1000 kB\n")
    assert reasons(session, world.target()) == ["driver", "host-memory"]


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"a/b/memory.max": "1000", "a/b/memory.current": "400", "a/memory.max": "max"}, [("a/b/memory.max", 600)]),
        ({"a/memory.max": "1000", "a/memory.current": "900"}, [("a/memory.max", 100)]),
        (
            {
                "a/memory.max": "1000",
                "a/memory.current": "900",
                "a/memory.stat": "anon 100\ninactive_file 500\nactive_file 200\nshmem 7\n",
            },
            [("a/memory.max", 800)],
        ),
        ({"a/b/memory.max": "max"}, []),
    ],
)
def test_limits_of_every_ancestor(
    world: World, monkeypatch: pytest.MonkeyPatch, limits: dict[str, str], expected: list[tuple[str, int]]
) -> None:
    host = world.host()
    for name, text in limits.items():
        path = world.directory / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    monkeypatch.setattr("gpuiso.reclaim.host_memory.cgroups", lambda host, pid: {"": "/a/b"})
    monkeypatch.setattr("gpuiso.reclaim.host_memory.cgroup_mount", lambda host, name: f"{world.directory}/cgroup")
    monkeypatch.setattr(host, "_is_live", lambda path: True)
    found = [(room.where, room.free) for room in rooms(host, os.getpid())][1:]
    assert found == [(f"{world.directory}/cgroup/{name}", free) for name, free in expected]
