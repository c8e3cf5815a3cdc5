# SPDX-License-Identifier: Apache-2.0
"""Real engines start containers from our specs: exactly the asked nodes are there, and nothing else opens.

No driver stands behind the lab's nodes: ENXIO says that the device cgroup let the open pass.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from gpuiso.cdi.emit import to_yaml
from gpuiso.cdi.generate import Options, generate
from tests.cdi.nvidia_host import DEVICES, nvidia_host
from tests.lab.access import open_in_container
from tests.lab.host import Lab
from tests.lab.images import bundle, docker_image, podman_image
from tests.lab.node import Node
from tests.tiers import requires

pytestmark = requires("lab")

SPEC = "/etc/cdi/nvidia.yaml"
SHARED_NODES = ["/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidiactl"]
LIST_NODES = "for node in /dev/nvidia*; do echo $node; done"


def uvm_major(lab: Lab) -> int:
    return int(lab.sh("stat -c %Hr /dev/nvidia-uvm"))


def spec_text(lab: Lab, *, numbers: bool = True) -> str:
    """Our spec for the lab's nodes; the lab has no driver that could be asked, so the host is made up around
    them.
    """
    host = nvidia_host(2, devices=DEVICES | {"nvidia-uvm": uvm_major(lab)})
    generated = generate(host, Options(hooks="none", numbers=numbers))
    assert generated.messages == ()
    for mount in generated.spec.container_edits.mounts:
        lab.put(mount.host_path, b"of the driver", mode=0o755)
    return to_yaml(generated.spec)


@pytest.fixture
def lab(lab13: Lab) -> Iterator[Lab]:
    """A lab with our spec in it."""
    lab13.put(SPEC, spec_text(lab13).encode())
    yield lab13
    lab13.sh(f"rm -f {SPEC}")


@pytest.fixture
def containers(lab: Lab) -> Iterator[list[tuple[str, str]]]:
    """(engine, name) of what a test starts; removed afterwards."""
    started: list[tuple[str, str]] = []
    yield started
    for engine, name in started:
        remove = {"docker": ["rm", "-f"], "podman": ["rm", "-f", "-t", "0"]}.get(engine, ["delete", "-f"])
        lab.run([engine, *remove, name], check=False)


def start(lab: Lab, engine: str, name: str, device: str) -> None:
    """Start a container that sleeps, with a CDI device; it may make nodes."""
    if engine in ("docker", "podman"):
        image = docker_image(lab) if engine == "docker" else podman_image(lab)
        options = ["--network=none", "--cap-add=MKNOD", f"--device={device}"]
        lab.run([engine, "run", "-d", "--name", name, *options, image, "sleep", "infinity"])
        return
    path = bundle(lab, f"/var/tmp/{name}", ["sleep", "infinity"])
    config = json.loads(lab.get(f"{path}/config.json"))
    for kind in config["process"]["capabilities"].values():
        kind.append("CAP_MKNOD")
    lab.put(f"{path}/config.json", json.dumps(config).encode())
    lab.run(["gpuiso", "cdi", "inject", "--write", f"{path}/config.json", device])
    # The container keeps the standard streams it is started with.
    lab.sh(
        '"$1" run -d --bundle "$2" "$3" </dev/null >/dev/null 2>"$2/err" || { cat "$2/err"; exit 1; }',
        engine,
        path,
        name,
    )


@pytest.mark.parametrize("engine", ["docker", "podman", "runc", "crun"])
@pytest.mark.parametrize(("device", "gpus"), [("0", [0]), ("1", [1]), ("all", [0, 1])])
def test_exactly_the_asked_gpus(
    engine: str, device: str, gpus: list[int], lab: Lab, containers: list[tuple[str, str]]
) -> None:
    name = f"cdi-{engine}-{device}"
    containers.append((engine, name))
    start(lab, engine, name, f"nvidia.com/gpu={device}")

    listed = lab.run([engine, "exec", name, "sh", "-c", LIST_NODES]).stdout.split()
    assert listed == sorted([*SHARED_NODES, *(f"/dev/nvidia{gpu}" for gpu in gpus)])
    assert {open_in_container(lab, name, node, engine=engine) for node in listed} == {"ENXIO"}
    for gpu in {0, 1} - set(gpus):
        # runc and crun refuse to make the node, Docker lets it be made; none lets it be opened.
        made = f"mknod /tmp/other c 195 {gpu} 2>/dev/null || echo refused"
        if lab.run([engine, "exec", name, "sh", "-c", made]).stdout.strip() != "refused":
            assert open_in_container(lab, name, "/tmp/other", engine=engine) == "EPERM"

    # "exec" of some engines does not get what CDI adds; the container's own process does.
    environment = lab.run([engine, "exec", name, "cat", "/proc/1/environ"]).stdout.split("\0")
    assert "NVIDIA_VISIBLE_DEVICES=void" in environment
    library = "/usr/lib/x86_64-linux-gnu/libcuda.so.580.126.09"
    assert lab.run([engine, "exec", name, "cat", library]).stdout == "of the driver"
    assert lab.run([engine, "exec", name, "touch", library], check=False).returncode != 0


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_engines_and_we_list_and_refuse_alike(engine: str, lab: Lab) -> None:
    listed = json.loads(lab.run(["gpuiso", "cdi", "list", "--json"]).stdout)
    assert "nvidia.com/gpu=all" in listed["devices"]
    image = docker_image(lab) if engine == "docker" else podman_image(lab)
    command = [engine, "run", "--rm", "--network=none", "--device=nvidia.com/gpu=9", image, "true"]
    refused = lab.run(command, check=False)
    assert refused.returncode != 0
    assert "unresolvable CDI devices" in refused.stderr
    lab.put("/var/tmp/config.json", b"{}")
    ours = lab.run(["gpuiso", "cdi", "inject", "/var/tmp/config.json", "nvidia.com/gpu=9"], check=False)
    assert ours.returncode == 4
    assert "unresolvable CDI devices: nvidia.com/gpu=9" in ours.stderr


def test_a_stale_spec_is_named(lab: Lab) -> None:
    major = uvm_major(lab)
    lab.put(SPEC, spec_text(lab).replace(f"major: {major}\n", f"major: {major - 1}\n").encode())
    done = lab.run(["gpuiso", "cdi", "validate", "--json", SPEC], check=False)
    (file,) = json.loads(done.stdout)["files"]
    assert (done.returncode, file["verdict"]) == (1, "accept")
    stale = [warning["message"] for warning in file["warnings"] if warning["rule"] == "CDI-NODE-STALE"]
    assert len(stale) == 2
    assert stale[0].startswith(f"/dev/nvidia-uvm is {major}:0 here, the spec says {major - 1}:0")


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_a_spec_without_numbers_follows_the_host(engine: str, lab: Lab, containers: list[tuple[str, str]]) -> None:
    lab.put(SPEC, spec_text(lab, numbers=False).encode())
    major = uvm_major(lab)
    try:
        lab.mknod(Node("/dev/nvidia-uvm", major - 1, 0))
        name = f"cdi-follow-{engine}"
        containers.append((engine, name))
        start(lab, engine, name, "nvidia.com/gpu=0")
        seen = lab.run([engine, "exec", name, "stat", "-c", "%t", "/dev/nvidia-uvm"]).stdout
        assert int(seen, 16) == major - 1
    finally:
        lab.mknod(Node("/dev/nvidia-uvm", major, 0))


def test_a_host_without_the_driver_is_told_so_and_keeps_its_specs(lab: Lab) -> None:
    before = lab.get(SPEC)
    done = lab.run(["gpuiso", "cdi", "refresh", "--directory", "/etc/cdi"], check=False)
    assert done.returncode == 5
    assert "no GPU here whose driver is loaded" in done.stderr
    assert lab.get(SPEC) == before
