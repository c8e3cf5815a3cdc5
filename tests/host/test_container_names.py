# SPDX-License-Identifier: Apache-2.0
"""Finding a container by what a person types, and by the path of a cgroup."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuiso.errors import NotFound
from gpuiso.host.containers import Containers, container_in_path, unit_in_path
from tests.host.container_world import A, B, C, World


@pytest.fixture
def containers(tmp_path: Path) -> Containers:
    world = World(tmp_path)
    names = {A: "train", B: "serve", C: "abba"}
    inspect = {i: {"Name": f"/{n}", "State": {"Running": True, "Pid": 7}} for i, n in names.items()}
    world.docker({"containers": inspect})
    return world.containers()


def test_by_id_prefix_and_name(containers: Containers) -> None:
    assert containers.find(A).id == containers.find("aaa").id == containers.find("train").id == A
    assert containers.find("c0f").name == "abba"
    assert containers.find("abba").id == C  # a name before the beginning of an id


def test_ambiguous(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.docker({"containers": {A: {"Name": "/train"}, f"{A[:40]}{'1' * 24}": {"Name": "/serve"}}})
    with pytest.raises(NotFound, match=r"'aaa' names 2 containers: serve \(aaaaaaaaaaaa, docker\), train \("):
        world.containers().find("aaa")


@pytest.mark.parametrize("word", ["aa", "", "nosuch", "/train", "train/", "../train"])
def test_unknown_lists_what_there_is(containers: Containers, word: str) -> None:
    with pytest.raises(NotFound, match="no container") as error:
        containers.find(word)
    assert error.value.hint is not None
    assert f"train ({A[:12]}, docker)" in error.value.hint


def test_no_containers_at_all(tmp_path: Path) -> None:
    with pytest.raises(NotFound) as error:
        World(tmp_path).containers().find("train")
    assert error.value.hint == "no container was found at all"


@pytest.mark.parametrize(
    ("path", "identity", "engine", "top"),
    [
        (f"/system.slice/docker-{A}.scope", A, "docker", 2),
        (f"/docker/{A}", A, "docker", 2),
        (f"/docker/{A}/docker/{B}/init", B, "docker", 4),
        (f"/jobs/docker-{A}.scope/nested/deep", A, "docker", 2),
        (f"/machine.slice/libpod-{A}.scope/container", A, "podman", 2),
        (f"/libpod_parent/{A}", A, "podman", 2),
        (f"/libpod_parent/libpod-{A}", A, "podman", 2),
        (f"/kubepods.slice/x.slice/cri-containerd-{A}.scope", A, "containerd", 3),
        (f"/kubepods.slice/x.slice/crio-{A}.scope", A, "cri-o", 3),
        (f"/kubepods/burstable/pod1/{A}", A, None, 4),
        ("/lxc.payload.web/system.slice", "web", "lxc", 1),
        ("/lxc/101/ns", "101", "lxc", 2),
        (r"/machine.slice/machine-my\x2dbox.scope/payload", "my-box", "systemd-nspawn", 2),
    ],
)
def test_cgroups_named_after_containers(path: str, identity: str, engine: str | None, top: int) -> None:
    name = container_in_path(path)
    assert name is not None
    assert (name.id, name.engine) == (identity, engine)
    assert name.path == "/".join(path.split("/")[: top + 1])


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/system.slice/docker.service",
        f"/machine.slice/libpod-conmon-{A}.scope",
        f"/kubepods.slice/crio-conmon-{A}.scope",
        f"/system.slice/docker-{A[:-1]}.scope",
        f"/user/{A.upper()}",
        r"/machine.slice/machine-qemu\x2d1\x2dvm.scope",
    ],
)
def test_cgroups_of_nobody(path: str) -> None:
    assert container_in_path(path) is None


@pytest.mark.parametrize(
    ("path", "unit"),
    [
        ("/system.slice/docker.service", "docker.service"),
        ("/system.slice/system-getty.slice/getty@tty1.service", "getty@tty1.service"),
        (f"/system.slice/docker-{A}.scope/init.scope", f"docker-{A}.scope"),
        ("/user.slice/user-1000.slice/user@1000.service/app.slice/x.service", "user@1000.service"),
        ("/system.slice/_cpu.service", "cpu.service"),
        ("/init.scope", "init.scope"),
        (f"/docker/{A}/system.slice/x.service", None),
        ("/system.slice", None),
        ("/", None),
    ],
)
def test_units(path: str, unit: str | None) -> None:
    assert unit_in_path(path) == unit
