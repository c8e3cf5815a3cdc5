# SPDX-License-Identifier: Apache-2.0
"""The labs are what they claim to be: container hosts whose systemd, engines and device programs are real."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.lab.access import open_in_container, open_in_lab, open_in_service
from tests.lab.errors import CommandFailed, LabError
from tests.lab.host import SHELL_CGROUP, Lab
from tests.lab.images import bundle, docker_image, podman_image
from tests.lab.node import Node, gpu_nodes
from tests.lab.rootless import run_rootless
from tests.tiers import requires

pytestmark = requires("lab")


@pytest.fixture(params=["lab13", "lab12"])
def lab(request: pytest.FixtureRequest) -> Lab:
    """Each release in turn."""
    booted: Lab = request.getfixturevalue(request.param)
    return booted


def test_versions(lab13: Lab, lab12: Lab) -> None:
    def first_lines(lab: Lab) -> list[str]:
        commands = ("systemctl --version", "docker --version", "podman --version", "runc --version")
        return [lab.sh(command).splitlines()[0] for command in commands]

    for lab, major in ((lab13, ["257", "26.", "5.", "1.1"]), (lab12, ["252", "20.", "4.", "1.1"])):
        for line, version in zip(first_lines(lab), major, strict=True):
            assert f" {version}" in line
        assert lab.sh("crun --version").startswith("crun version ")


def test_systemd_runs(lab: Lab) -> None:
    assert lab.sh("systemctl is-system-running") == "running"
    assert lab.sh("cat /proc/1/comm") == "systemd"
    assert lab.sh("systemctl is-active docker.service dbus.service").split() == ["active", "active"]


def test_commands_run_in_a_unit_of_a_pure_v2_tree(lab: Lab) -> None:
    assert f"0::{SHELL_CGROUP}" in lab.sh("cat /proc/self/cgroup").splitlines()
    assert lab.sh("stat -f -c %T /sys/fs/cgroup") == "cgroup2fs"
    inside = lab.sh("cat /sys/fs/cgroup$0/cgroup.events 2>/dev/null || cat /sys/fs/cgroup/cgroup.controllers")
    assert inside == (lab.cgroup / "cgroup.controllers").read_text().strip()


def test_docker_runs_a_container(lab: Lab) -> None:
    done = lab.run(["docker", "run", "--rm", docker_image(lab), "sh", "-c", "cat; id -u"], check=False)
    assert (done.returncode, done.stdout) == (0, "0\n")
    assert lab.sh("docker info --format '{{.CgroupVersion}} {{.CgroupDriver}}'") == "2 systemd"


def test_privileged_containers_see_every_node(lab13: Lab) -> None:
    for engine, image in (("docker", docker_image(lab13)), ("podman", podman_image(lab13))):
        done = lab13.run([engine, "run", "--rm", "--privileged", image, "cat", "/dev/nvidia0"], check=False)
        assert "No such device or address" in done.stderr


def test_podman_runs_a_container(lab: Lab) -> None:
    assert lab.run(["podman", "run", "--rm", podman_image(lab), "id", "-u"]).stdout == "0\n"


def test_podman_runs_a_rootless_container(lab: Lab) -> None:
    image = podman_image(lab, rootless=True)
    done = run_rootless(lab, ["podman", "run", "--rm", "--network=none", image, "cat", "/proc/self/uid_map"])
    assert done.stdout.split()[:3] == ["0", "1000", "1"]


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_runtime_runs_a_bundle(lab: Lab, runtime: str) -> None:
    path = bundle(lab, f"/tmp/{runtime}-bundle", ["echo", "hello"])
    done = lab.run([runtime, "--systemd-cgroup", "run", "--bundle", path, f"{runtime}-test"], check=False)
    if "RLIM_MEMLOCK" in done.stderr:
        pytest.skip("this crun raises RLIMIT_MEMLOCK, which root without CAP_SYS_RESOURCE may not")
    assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr


def test_nodes_have_no_driver(lab: Lab) -> None:
    for node in gpu_nodes():
        assert lab.sh('stat -c "%F %a" "$1"', node.path) == "character special file 666"
        assert open_in_lab(lab, node.path) == "ENXIO"


def test_mknod(lab: Lab) -> None:
    lab.mknod(Node("/dev/nvidia-caps/nvidia-cap1", 195, 77, 0o400))
    assert lab.sh("stat -c '%t %T %a' /dev/nvidia-caps/nvidia-cap1") == "c3 4d 400"


def test_device_allow(lab: Lab) -> None:
    allowed = ["DevicePolicy=closed", "DeviceAllow=/dev/nvidia0 r"]
    assert open_in_service(lab, "/dev/nvidia0", ["DevicePolicy=closed"]) == "EPERM"
    assert open_in_service(lab, "/dev/nvidia0", allowed, "r") == "ENXIO"
    assert open_in_service(lab, "/dev/nvidia0", allowed, "w") == "EPERM"
    assert open_in_service(lab, "/dev/nvidia1", allowed, "r") == "EPERM"


def test_docker_device_option(lab: Lab) -> None:
    run = ["docker", "run", "--detach", "--rm", "--device", "/dev/nvidia1", docker_image(lab)]
    container = lab.run(run).stdout.strip()
    try:
        assert open_in_container(lab, container, "/dev/nvidia1") == "ENXIO"
        assert open_in_container(lab, container, "/dev/nvidia0") == "ENOENT"
        lab.run(["docker", "exec", container, "mknod", "/dev/nvidia0", "c", "195", "0"])
        assert open_in_container(lab, container, "/dev/nvidia0") == "EPERM"
    finally:
        lab.run(["docker", "rm", "--force", container])


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_engine_injects_cdi_devices(lab13: Lab, engine: str) -> None:
    image = docker_image(lab13) if engine == "docker" else podman_image(lab13)
    edits = {"deviceNodes": [{"path": "/dev/nvidia1"}], "env": ["GPUISO_TEST=injected"]}
    spec = {
        "cdiVersion": "0.6.0",
        "kind": "example.com/gpu",
        "devices": [{"name": "one", "containerEdits": edits}],
    }
    lab13.put("/etc/cdi/example.json", json.dumps(spec).encode())
    try:
        run = [engine, "run", "--rm", "--device", "example.com/gpu=one", image]
        done = lab13.run([*run, "sh", "-c", "echo $GPUISO_TEST; : </dev/nvidia1"], check=False)
    finally:
        lab13.sh("rm /etc/cdi/example.json")
    assert done.stdout == "injected\n"
    assert "No such device or address" in done.stderr


def test_run_reports_what_a_command_did(lab13: Lab) -> None:
    done = lab13.run(["sh", "-c", "cat; echo no >&2; exit 3"], input="yes", check=False)
    assert (done.returncode, done.stdout, done.stderr) == (3, "yes", "no\n")
    with pytest.raises(CommandFailed, match="exit 3") as failed:
        lab13.run(["sh", "-c", "exit 3"])
    assert failed.value.done.returncode == 3


def test_run_ends_what_takes_too_long(lab13: Lab) -> None:
    with pytest.raises(LabError, match="no end after"):
        lab13.run(["sleep", "4711"], timeout=0.5)
    assert lab13.run(["pgrep", "-f", "sleep 4711"], check=False).stdout == ""


def test_files_go_in_and_out(lab13: Lab) -> None:
    content = bytes(range(256)) * 300
    lab13.put("/tmp/some/where", content, 0o640)
    assert lab13.get("/tmp/some/where") == content
    assert lab13.sh("stat -c %a /tmp/some/where") == "640"
    with pytest.raises(CommandFailed, match="No such file"):
        lab13.get("/tmp/nowhere")


def test_processes_have_a_number_outside(lab13: Lab) -> None:
    assert lab13.host_pid(1) == lab13.pid
    with pytest.raises(LabError, match="no process"):
        lab13.host_pid(4_000_000)


def test_the_checkout_runs_inside(lab: Lab) -> None:
    code = "import gpuiso, jsonschema, pynvml, rich, typer, yaml; print(gpuiso.__file__)"
    assert lab.python(code).stdout == "/opt/gpuiso/gpuiso/__init__.py\n"
    with pytest.raises(CommandFailed, match="Read-only"):
        lab.sh("touch /opt/gpuiso/written")


def test_the_project_commands_are_on_the_path(lab: Lab) -> None:
    assert lab.sh("gpuiso --version").startswith("gpuiso ")


def test_a_lab_cannot_change_the_machine(lab: Lab) -> None:
    for path in ("/proc/sys/kernel/panic", "/proc/sys/vm/swappiness", "/sys/kernel/mm/ksm/run"):
        with pytest.raises(CommandFailed, match=r"Read-only|No such file"):
            lab.sh('echo 0 >"$1"', path)
    assert "debugfs" not in lab.sh("cat /proc/mounts")


def test_the_image_stays_as_it_was(lab: Lab) -> None:
    lab.put("/etc/written-by-a-test", b"")
    lab.sh("rm /etc/issue")
    assert not (lab.image.root / "etc/written-by-a-test").exists()
    assert (lab.image.root / "etc/issue").exists()


def test_nothing_of_a_lab_is_mounted_outside(lab: Lab) -> None:
    mounts = subprocess.run(["cat", "/proc/self/mountinfo"], capture_output=True, text=True, check=True).stdout
    assert str(lab.image.root.parent) not in mounts
