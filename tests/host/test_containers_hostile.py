# SPDX-License-Identifier: Apache-2.0
"""State that is stale, broken or a lie makes no container of a process that is none, and no error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuiso.host.containers.state_files import MAX_STATE
from tests.host.container_world import START, A, World

MOBY = "/run/containerd/io.containerd.runtime.v2.task/moby"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_process_that_started_at_another_time_is_another(world: World) -> None:
    world.state("/run/crun/one/status", {"pid": 7, "process-start-time": START - 1, "bundle": "/b"})
    world.process(7, "/one")
    assert world.containers().all[0].pid is None


def test_a_pid_that_went_to_a_younger_process(world: World) -> None:
    world.state("/proc/stat", "cpu 0\nbtime 1000000\n")
    world.state(f"{MOBY}/{A}/init.pid", "7")
    world.process(7, "/user.slice", start=5000)  # begun at 1000050
    world.written(f"{MOBY}/{A}/init.pid", 1000060)
    assert world.containers().all[0].pid == 7
    world.written(f"{MOBY}/{A}/init.pid", 1000040)
    assert world.containers().all[0].pid is None


def test_a_pid_that_is_gone(world: World) -> None:
    world.state(f"{MOBY}/{A}/init.pid", "7")
    world.absent("/proc/7/cgroup")
    assert world.containers().all[0].pid is None


def test_a_user_cannot_speak_for_processes_of_the_host(world: World) -> None:
    status = {"pid": 7, "process-start-time": START, "cgroup-path": "/system.slice/sshd.service"}
    world.state("/run/user/1000/crun/evil/status", status)
    world.process(7, "/system.slice/sshd.service")
    containers = world.containers()
    assert containers.find("evil").pid is None
    assert containers.at(["/system.slice/sshd.service"]) is None


def test_two_users_may_give_the_same_id(world: World) -> None:
    for uid, pid in ((1000, 7), (1001, 8)):
        world.state(f"/run/user/{uid}/crun/train/status", {"pid": pid, "process-start-time": START})
        world.process(pid, f"/user.slice/{uid}/train", user_ns=f"user:[{uid}]")
    assert {(each.owner, each.pid) for each in world.containers().all} == {(1000, 7), (1001, 8)}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"null",
        b"7",
        b"{",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"pid": "7", "bundle": 7, "process-start-time": true, "cgroup-path": []}',
        b'{"pid": -1, "bundle": "../../etc", "process-start-time": 1e99}',
        b'{"init_process_pid": {}, "config": [], "cgroup_paths": {"": 7}}',
        b'{"init_process_pid": 7, "config": {"labels": {"bundle": "/"}}, "cgroup_paths": []}',
        b" " * (MAX_STATE + 1),
    ],
    ids=lambda content: content[:20].decode("latin-1"),
)
def test_state_of_an_odd_shape(world: World, content: bytes) -> None:
    world.process(7, "/seven")
    for path in (
        "/run/crun/one/status",
        "/run/runc/one/state.json",
        f"{MOBY}/{A}/config.json",
        f"{MOBY}/{A}/init.pid",
        f"{MOBY}/{A}/options.json",
        f"/var/lib/docker/containers/{A}/config.v2.json",
        f"/var/lib/docker/containers/{A}/hostconfig.json",
        "/var/lib/containers/storage/overlay-containers/containers.json",
        "/etc/docker/daemon.json",
        "/etc/passwd",
        "/run/user/1000/crun/one/status",
    ):
        world.state(path, content)
    for container in world.containers().all:
        assert container.cgroup is None
        assert container.env is None


@pytest.mark.parametrize("entry", [7, {}, {"id": 7}, {"id": "../../x"}, {"id": A, "names": 7, "metadata": 7}, None])
def test_storage_entries_of_an_odd_shape(world: World, entry: Any) -> None:
    world.state("/var/lib/containers/storage/overlay-containers/containers.json", [entry])
    for container in world.containers().all:
        assert (container.id, container.name, container.image) == (A, None, None)
