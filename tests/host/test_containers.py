# SPDX-License-Identifier: Apache-2.0
"""Containers of each engine, from the state it keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuiso.host.containers import Container
from tests.host.container_world import START, A, B, C, World

MOBY = "/run/containerd/io.containerd.runtime.v2.task/moby"
DOCKER = f"/system.slice/docker-{A}.scope"
STORAGE = "/var/lib/containers/storage/overlay-containers"
CONFIG = {"ociVersion": "1.2.0", "process": {"env": ["NVIDIA_VISIBLE_DEVICES=0", "A=1", "A=2", "odd"]}}
ENV = {"NVIDIA_VISIBLE_DEVICES": "0", "A": "1"}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def managed(manager: str, **annotations: str) -> dict[str, Any]:
    return {**CONFIG, "annotations": {"io.container.manager": manager, **annotations}}


def only(world: World) -> Container:
    (container,) = world.containers().all
    return container


def inspect(pid: int = 7, *, running: bool = True) -> dict[str, Any]:
    return {
        "Id": A,
        "Name": "/train",
        "Config": {"Image": "pytorch", "Env": ["NVIDIA_VISIBLE_DEVICES=0", "A=1"]},
        "HostConfig": {"Runtime": "nvidia"},
        "State": {"Running": running, "Pid": pid},
    }


def test_docker(world: World) -> None:
    world.docker({"containers": {A: inspect()}})
    world.state(f"{MOBY}/{A}/init.pid", "7")
    world.state(f"{MOBY}/{A}/config.json", CONFIG)
    world.process(7, f"{DOCKER}/init.scope")
    assert only(world) == Container(
        A,
        "docker",
        name="train",
        runtime="nvidia",
        pid=7,
        cgroup=DOCKER,
        image="pytorch",
        config=f"{MOBY}/{A}/config.json",
        env=ENV,
    )


def test_docker_that_does_not_answer(world: World) -> None:
    world.state("/etc/docker/daemon.json", {"data-root": "/data/docker"})
    world.state(f"/data/docker/containers/{A}/config.v2.json", inspect())
    world.state(f"/data/docker/containers/{A}/hostconfig.json", {"Runtime": "runc"})
    world.state(f"{MOBY}/{A}/init.pid", "7")
    world.state(f"{MOBY}/{A}/options.json", {"binary_name": "/usr/bin/runc"})
    world.process(7, DOCKER)
    container = only(world)
    assert (container.name, container.image, container.runtime) == ("train", "pytorch", "runc")
    assert (container.pid, container.cgroup, container.env) == (7, DOCKER, ENV)
    assert "tools/docker.json" in world.containers().missing


def test_docker_container_that_is_stopped(world: World) -> None:
    world.docker({"containers": {A: inspect(0, running=False)}})
    container = only(world)
    assert not container.running
    assert (container.name, container.cgroup) == ("train", None)


def test_docker_under_its_own_containerd_with_cgroupfs(world: World) -> None:
    state = f"/run/docker/containerd/daemon/io.containerd.runtime.v2.task/moby/{A}"
    world.state(f"{state}/init.pid", "7\n")
    world.state(f"{state}/runtime", "/usr/bin/nvidia-container-runtime")
    world.process(7, "/system.slice/docker.service", v1=f"9:devices:/docker/{A}\n")
    container = only(world)
    assert (container.engine, container.pid, container.cgroup) == ("docker", 7, f"/docker/{A}")
    assert container.runtime == "/usr/bin/nvidia-container-runtime"


@pytest.mark.parametrize("state", ["/run/containerd", "/run/k3s/containerd", "/run/k0s/containerd"])
def test_kubernetes_on_containerd(world: World, state: str) -> None:
    pod = {"io.kubernetes.cri.sandbox-namespace": "ml", "io.kubernetes.cri.sandbox-name": "job-0"}
    kinds = {
        A: {"io.kubernetes.cri.container-type": "container", "io.kubernetes.cri.container-name": "train"},
        B: {"io.kubernetes.cri.container-type": "sandbox"},
    }
    slice_ = "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod1.slice"
    for pid, (identity, kind) in enumerate(kinds.items(), start=7):
        bundle = f"{state}/io.containerd.runtime.v2.task/k8s.io/{identity}"
        world.state(f"{bundle}/init.pid", str(pid))
        world.state(f"{bundle}/config.json", {**CONFIG, "annotations": {**pod, **kind}})
        world.process(pid, f"{slice_}/cri-containerd-{identity}.scope")
    containers = world.containers()
    train, sandbox = containers.all
    assert (train.engine, train.namespace, train.name) == ("containerd", "k8s.io", "ml/job-0/train")
    assert (train.pid, train.cgroup) == (7, f"{slice_}/cri-containerd-{A}.scope")
    assert (sandbox.name, sandbox.sandbox, train.sandbox) == ("ml/job-0", True, False)
    assert containers.find("train") == containers.find("job-0/train") == train
    assert containers.at([f"{slice_}/cri-containerd-{A}.scope/nested"]) == train


def test_nerdctl(world: World) -> None:
    bundle = f"/run/containerd/io.containerd.runtime.v2.task/default/{A}"
    world.state(f"{bundle}/init.pid", "7")
    world.state(f"{bundle}/config.json", {**CONFIG, "annotations": {"nerdctl/name": "train"}})
    world.process(7, f"/system.slice/nerdctl-{A}.scope")
    container = only(world)
    assert (container.engine, container.namespace, container.name) == ("containerd", "default", "train")
    assert container.cgroup == f"/system.slice/nerdctl-{A}.scope"


def test_a_container_of_ctr_has_the_cgroup_it_declares(world: World) -> None:
    bundle = "/run/containerd/io.containerd.runtime.v2.task/default/demo"
    world.state(f"{bundle}/init.pid", "7")
    world.state(f"{bundle}/config.json", {**CONFIG, "linux": {"cgroupsPath": "/apps/one"}})
    world.process(7, "/apps/one/inner")
    assert only(world).cgroup == "/apps/one"


def crun_status(bundle: str, **more: Any) -> dict[str, Any]:
    return {"pid": 7, "process-start-time": START, "bundle": bundle, **more}


def test_podman_with_crun(world: World) -> None:
    scope = f"/machine.slice/libpod-{A}.scope"
    bundle = f"{STORAGE}/{A}/userdata"
    world.state(f"/run/crun/{A}/status", crun_status(bundle, **{"cgroup-path": f"{scope}/container"}))
    world.state("/run/crun/.cache/seccomp/abc", "not a state")
    world.state(f"{bundle}/config.json", managed("libpod"))
    stored = [
        {"id": A, "names": ["train"], "metadata": '{"image-name": "pytorch", "name": "train"}'},
        {"id": B, "names": ["old"], "metadata": "{}"},
    ]
    world.state(f"{STORAGE}/containers.json", stored)
    world.process(7, f"{scope}/container")
    train, old = world.containers().all
    assert (train.engine, train.runtime, train.name, train.image) == ("podman", "crun", "train", "pytorch")
    assert (train.pid, train.cgroup, train.config, train.env) == (7, scope, f"{bundle}/config.json", ENV)
    assert (old.engine, old.name, old.running) == ("podman", "old", False)


def test_rootless_podman_with_runc(world: World) -> None:
    layer = "/home/ann/.local/share/containers/storage/vfs-containers"
    scope = f"/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{A}.scope"
    state = {
        "init_process_pid": 7,
        "init_process_start": START,
        "config": {"labels": ["x=y", f"bundle={layer}/{A}/userdata"]},
        "cgroup_paths": {"": f"/sys/fs/cgroup{scope}"},
    }
    world.state("/etc/passwd", "root:x:0:0::/root:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh\n")
    world.state(f"/run/user/1000/runc/{A}/state.json", state)
    world.state(f"{layer}/{A}/userdata/config.json", managed("libpod"))
    world.state(f"{layer}/containers.json", [{"id": A, "names": ["train"]}, {"id": B, "names": ["old"]}])
    world.process(7, scope, user_ns="user:[2]")
    train, old = world.containers().all
    assert (train.engine, train.runtime, train.name, train.owner) == ("podman", "runc", "train", 1000)
    assert (train.pid, train.cgroup) == (7, scope)
    assert (old.name, old.owner, old.running) == ("old", 1000, False)


def test_crio(world: World) -> None:
    scope = f"/kubepods.slice/kubepods-pod1.slice/crio-{A}.scope"
    bundle = f"/run/containers/storage/overlay-containers/{A}/userdata"
    annotations = {
        "io.kubernetes.pod.namespace": "ml",
        "io.kubernetes.pod.name": "job-0",
        "io.kubernetes.container.name": "train",
        "io.kubernetes.cri-o.ContainerType": "container",
        "io.kubernetes.cri-o.ImageName": "registry.example/pytorch:2",
    }
    world.state(f"/run/crun/{A}/status", crun_status(bundle))
    world.state(f"{bundle}/config.json", managed("cri-o", **annotations))
    world.process(7, scope)
    container = only(world)
    assert (container.engine, container.name, container.namespace) == ("cri-o", "ml/job-0/train", "ml")
    assert (container.image, container.cgroup) == ("registry.example/pytorch:2", scope)


def test_crio_whose_runtime_keeps_its_state_elsewhere(world: World) -> None:
    run = "/run/containers/storage/overlay-containers"
    stored = {"id": A, "names": ["k8s_train"], "metadata": '{"pod-name": "job-0", "image-name": "pytorch"}'}
    world.state(f"{STORAGE}/containers.json", [stored])
    world.state(f"{run}/{A}/userdata/pidfile", "7")
    world.state(f"{run}/{A}/userdata/config.json", managed("cri-o", **{"io.kubernetes.pod.name": "job-0"}))
    world.process(7, f"/kubepods.slice/crio-{A}.scope")
    container = only(world)
    assert (container.engine, container.name, container.pid) == ("cri-o", "default/job-0", 7)
    assert container.config == f"{run}/{A}/userdata/config.json"


def test_runc_and_crun_alone(world: World) -> None:
    world.state("/run/crun/two/status", crun_status("/b", **{"cgroup-path": "/two"}))
    world.state("/b/config.json", CONFIG)
    state = {"init_process_pid": 8, "init_process_start": START, "config": {"labels": ["bundle=/b"]}}
    world.state(
        "/run/runc/one/state.json", {**state, "cgroup_paths": {"": "/sys/fs/cgroup/system.slice/runc-one.scope"}}
    )
    world.process(7, "/two")
    world.process(8, "/system.slice/runc-one.scope")
    containers = world.containers()
    one, two = containers.all
    assert (one.id, one.engine, one.pid, one.cgroup) == ("one", "runc", 8, "/system.slice/runc-one.scope")
    assert (two.id, two.engine, two.pid, two.cgroup, two.env) == ("two", "crun", 7, "/two", ENV)
    assert containers.at(["/two"]) is two


def test_a_container_without_a_cgroup_of_its_own_claims_nobody(world: World) -> None:
    world.state("/run/crun/one/status", crun_status("/b", **{"cgroup-path": ""}))
    world.process(7, "/user.slice/user-0.slice/session-1.scope")
    containers = world.containers()
    assert (containers.all[0].pid, containers.all[0].cgroup) == (7, None)
    assert containers.at(["/user.slice/user-0.slice/session-1.scope"]) is None


def test_what_only_a_cgroup_tells_of(world: World) -> None:
    world.process(9, f"{DOCKER}/sub")
    world.process(7, DOCKER, inner=4)
    world.process(8, DOCKER, inner=1)
    world.process(12, f"/kubepods/besteffort/pod1/{C}")
    world.process(13, f"/machine.slice/libpod-conmon-{B}.scope")
    world.process(14, "/lxc.payload.web/init.scope")
    found = {container.id: container for container in world.containers().all}
    assert found.keys() == {A, C, "web"}
    assert (found[A].engine, found[A].pid, found[A].cgroup) == ("docker", 8, DOCKER)
    assert (found[C].engine, found[C].pid) == ("kubernetes", 12)
    assert (found["web"].engine, found["web"].cgroup) == ("lxc", "/lxc.payload.web")


def test_a_cgroup_completes_what_an_engine_does_not_tell(world: World) -> None:
    stopped = inspect(0, running=False)
    world.docker({"containers": {A: stopped}})
    world.process(7, DOCKER)
    assert (only(world).name, only(world).pid, only(world).cgroup) == ("train", 7, DOCKER)
