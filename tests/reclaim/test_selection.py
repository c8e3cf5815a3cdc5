# SPDX-License-Identifier: Apache-2.0
"""Who is meant by a pid, a container, a unit, a GPU or a user."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from gpuiso.errors import NotFound, Unknown
from gpuiso.gpu.inventory import build_inventory
from gpuiso.host.gpu_memory import GpuMemory
from gpuiso.reclaim.selection import Selection, select, sharers
from tests.reclaim.world import World
from tests.tiers import requires

CONTAINER = "4f5d" * 16


def pids(world: World, asked: Selection) -> list[int]:
    host = world.host()
    return [who.pid for who in select(host, build_inventory(host), world.memory, asked)]


def test_by_pid_whatever_it_holds(world: World) -> None:
    target = world.target(gpu=2, mib=700)
    assert pids(world, Selection(pids=(target, os.getpid()))) == sorted([target, os.getpid()])
    host = world.host()
    (who,) = select(host, build_inventory(host), world.memory, Selection(pids=(target,)))
    assert (who.comm, who.user) == ("python", pwd.getpwuid(os.geteuid()).pw_name)
    assert (who.gpus, who.memory) == ((world.uuids[2],), {world.uuids[2]: 700 << 20})
    with pytest.raises(NotFound, match="no process 4194305"):
        pids(world, Selection(pids=(4194305,)))


def test_by_gpu(world: World) -> None:
    one, two = world.target(gpu=1), world.target(gpu=2)
    assert pids(world, Selection(gpus=(world.uuids[1],))) == [one]
    assert pids(world, Selection(gpus=tuple(world.uuids[1:3]))) == sorted([one, two])
    with pytest.raises(NotFound, match="no process of GPU"):
        pids(world, Selection(gpus=(world.uuids[3],)))
    with pytest.raises(NotFound, match="no GPU GPU-1 on"):
        pids(world, Selection(gpus=("GPU-1",)))


def test_by_gpu_without_nvml(world: World) -> None:
    target = world.target(gpu=1)
    host = world.host()

    def silent() -> tuple[GpuMemory, ...]:
        raise Unknown("NVML", "no answer")

    found = select(host, build_inventory(host), silent, Selection(gpus=(world.uuids[1],)))
    assert [who.pid for who in found] == [target]


def test_by_user(world: World) -> None:
    target = world.target()
    assert target in pids(world, Selection(user=pwd.getpwuid(os.geteuid()).pw_name))
    assert target in pids(world, Selection(user=str(os.geteuid())))
    with pytest.raises(NotFound, match="no user nobody-of-that-name"):
        pids(world, Selection(user="nobody-of-that-name"))
    with pytest.raises(NotFound, match="no process of user 4242"):
        pids(world, Selection(user="4242"))


def test_sharers(world: World) -> None:
    one, two, _ = world.target(gpu=1), world.target(gpu=1), world.target(gpu=0)
    host = world.host()
    found = sharers(host, build_inventory(host), world.memory, (world.uuids[1],))
    assert [who.pid for who in found] == sorted([one, two])


@requires("kernel")
def test_by_unit_and_container(world: World, tmp_cgroup: Path) -> None:
    inside, outside = world.target(), world.target()
    for name, pid in ((f"docker-{CONTAINER}.scope", inside), ("job.service", outside)):
        (tmp_cgroup / name).mkdir()
        (tmp_cgroup / name / "cgroup.procs").write_text(str(pid))
    assert pids(world, Selection(container=CONTAINER[:12])) == [inside]
    assert pids(world, Selection(container=CONTAINER)) == [inside]
    assert pids(world, Selection(unit="job")) == [outside]
    assert pids(world, Selection(unit="job.service", container=CONTAINER[:12])) == sorted([inside, outside])
    with pytest.raises(NotFound, match="no running container 0"):
        pids(world, Selection(container="0" * 12))
    with pytest.raises(NotFound, match=r"no process of unit jo\.service"):
        pids(world, Selection(unit="jo"))


@requires("kernel")
def test_a_container_that_holds_no_gpu(world: World, tmp_cgroup: Path) -> None:
    (tmp_cgroup / f"docker-{CONTAINER}.scope").mkdir()
    with pytest.raises(NotFound, match="no process of container"):
        pids(world, Selection(container=CONTAINER))
