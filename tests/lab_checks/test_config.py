# SPDX-License-Identifier: Apache-2.0
"""What `gpuiso config` writes the real engines accept; what `gpuiso hook seccomp` prints they apply."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.lab.host import Lab
from tests.lab.images import bundle, docker_image, podman_image
from tests.tiers import requires

pytestmark = requires("lab")

DAEMON = "/etc/docker/daemon.json"
CONTAINERD = "/etc/containerd/config.toml"
PODMAN = "/etc/containers/containers.conf.d/50-gpuiso.conf"
RUNTIME = "/usr/bin/nvidia-container-runtime"
SPEC = {
    "cdiVersion": "0.5.0",
    "kind": "nvidia.com/gpu",
    "devices": [{"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}}],
}


@contextlib.contextmanager
def files_as_before(lab: Lab, *paths: str, units: tuple[str, ...] = ()) -> Iterator[None]:
    """Files of the lab are put back, their backups removed, and units restarted."""
    kept = {path: lab.get(path) for path in paths if lab.run(["test", "-e", path], check=False).returncode == 0}
    try:
        yield
    finally:
        for path in paths:
            lab.sh('rm -f "$1" "$1".gpuiso-backup-*', path)
            if path in kept:
                lab.put(path, kept[path])
        for unit in units:
            lab.run(["systemctl", "reset-failed", unit], check=False)
            lab.run(["systemctl", "restart", unit])


@contextlib.contextmanager
def stand_in_runtime(lab: Lab) -> Iterator[None]:
    """A runtime of that name, which is runc."""
    lab.sh('ln -s "$(command -v runc)" "$1"', RUNTIME)
    try:
        yield
    finally:
        lab.run(["rm", "-f", RUNTIME])


def docker_info(lab: Lab) -> dict[str, Any]:
    info: dict[str, Any] = json.loads(lab.run(["docker", "info", "--format", "{{json .}}"]).stdout)
    return info


def config(lab: Lab, *arguments: str, check: bool = True) -> Any:
    return lab.run(["gpuiso", "config", *arguments], check=check)


def test_docker_starts_with_it_and_knows_runtime_and_cdi(lab13: Lab) -> None:
    with files_as_before(lab13, DAEMON, units=("docker.service",)), stand_in_runtime(lab13):
        lab13.put(DAEMON, b'{\n  "features": {"containerd-snapshotter": false},\n  "labels": ["a=b"]\n}\n', 0o640)
        lab13.run(["chown", "0:4", DAEMON])
        done = config(lab13, "docker", "--preset", "rootful", "--write", "--restart")
        assert "docker.service was restarted" in done.stdout
        assert lab13.get(DAEMON).decode() == (
            '{\n  "features": {"containerd-snapshotter": false, "cdi": true},\n  "labels": ["a=b"],\n'
            f'  "runtimes": {{\n    "nvidia": {{\n      "path": "{RUNTIME}"\n    }}\n  }}\n}}\n'
        )
        assert lab13.sh('stat -c "%a %u:%g" "$1"', DAEMON) == "640 0:4"
        assert lab13.sh('stat -c "%a %u:%g" "$1".gpuiso-backup-*', DAEMON) == "640 0:4"
        info = docker_info(lab13)
        assert info["Runtimes"]["nvidia"]["path"] == RUNTIME
        assert info["CDISpecDirs"] == ["/etc/cdi", "/var/run/cdi"]

        again = config(lab13, "docker", "--preset", "rootful", "--write", "--restart")
        assert again.stdout == f"{DAEMON}: nothing to change\n"

        lab13.put("/etc/cdi/nvidia.json", json.dumps(SPEC).encode())
        image = docker_image(lab13)
        run = ["docker", "run", "--rm", "--network=none"]
        listed = lab13.run([*run, "--device=nvidia.com/gpu=0", image, "ls", "/dev/nvidia0"])
        assert listed.stdout == "/dev/nvidia0\n"
        assert lab13.run([*run, "--runtime=nvidia", image, "echo", "it runs"]).stdout == "it runs\n"
    lab13.run(["rm", "/etc/cdi/nvidia.json"])


def test_a_docker_that_does_not_start_gets_its_old_file_back(lab13: Lab) -> None:
    with files_as_before(lab13, DAEMON, units=("docker.service",)):
        before = b'{"live-restore": false}'
        lab13.put(DAEMON, before)
        wrong = ["--set", "userns-remap=no-such-user-here", "--write", "--restart"]
        done = config(lab13, "docker", *wrong, check=False)
        assert done.returncode == 7, done
        assert "the files were put back and docker.service runs again" in done.stderr
        assert lab13.get(DAEMON) == before
        assert lab13.sh('ls "$1"*', DAEMON) == DAEMON
        assert docker_info(lab13)["Driver"]


def test_what_dockerd_itself_refuses_is_not_written(lab13: Lab) -> None:
    with files_as_before(lab13, DAEMON):
        lab13.put(DAEMON, b'{"no-such-key": 1}')
        done = config(lab13, "docker", "--preset", "cdi", "--write", check=False)
        assert done.returncode == 2
        assert done.stderr.count("\n") == 2
        assert "dockerd refuses the new configuration" in done.stderr
        assert "no-such-key" in done.stderr
        assert lab13.get(DAEMON) == b'{"no-such-key": 1}'


def test_an_old_docker_has_no_cdi(lab12: Lab) -> None:
    with files_as_before(lab12, DAEMON, units=("docker.service",)), stand_in_runtime(lab12):
        lab12.run(["rm", "-f", DAEMON])
        refused = config(lab12, "docker", "--preset", "cdi", "--write", check=False)
        assert refused.returncode == 2
        assert "Docker 20.10 has no CDI" in refused.stderr
        assert lab12.run(["test", "-e", DAEMON], check=False).returncode == 1
        config(lab12, "docker", "--preset", "rootful", "--write", "--restart")
        assert b"cdi" not in lab12.get(DAEMON)
        assert docker_info(lab12)["Runtimes"]["nvidia"]["path"] == RUNTIME


@pytest.mark.parametrize("release", ["lab12", "lab13"])
def test_containerd_starts_with_it(release: str, request: pytest.FixtureRequest) -> None:
    lab: Lab = request.getfixturevalue(release)
    table = 'plugins."io.containerd.grpc.v1.cri"'
    with files_as_before(lab, CONTAINERD, units=("containerd.service", "docker.service")), stand_in_runtime(lab):
        before = lab.get(CONTAINERD).decode()
        config(lab, "containerd", "--preset", "rootful", "--write", "--restart")
        after = iter(lab.get(CONTAINERD).decode().splitlines())
        assert all(line in after for line in before.splitlines()), "every line is there, in its order"
        assert lab.run(["systemctl", "is-active", "containerd.service"]).stdout == "active\n"
        dump = lab.run(["containerd", "config", "dump"]).stdout
        assert f"[{table}.containerd.runtimes.nvidia.options]" in dump
        assert f'BinaryName = "{RUNTIME}"' in dump
        assert ("enable_cdi = true" in dump) is (release == "lab13")
        assert 'bin_dir = "/usr/lib/cni"' in dump
        again = config(lab, "containerd", "--preset", "rootful", "--write")
        assert again.stdout == f"{CONTAINERD}: nothing to change\n"


def test_a_drop_in_of_containerd_does_not_take_the_table_away(lab13: Lab) -> None:
    drop_in = "/etc/containerd/conf.d/90-gpu.toml"
    with files_as_before(lab13, CONTAINERD, drop_in, units=("containerd.service", "docker.service")):
        refused = config(lab13, "containerd", "--preset", "cdi", "--file", drop_in, "--write", check=False)
        assert refused.returncode == 2
        assert "would replace the whole table" in refused.stderr
        lab13.put(CONTAINERD, b"version = 2\noom_score = -999 # ours\n")
        config(lab13, "containerd", "--preset", "cdi", "--file", drop_in, "--write", "--restart")
        assert lab13.get(CONTAINERD) == (
            b'version = 2\noom_score = -999 # ours\nimports = ["/etc/containerd/conf.d/*.toml"]\n'
        )
        dump = lab13.run(["containerd", "config", "dump"]).stdout
        assert "enable_cdi = true" in dump
        assert 'cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]' in dump
        again = config(lab13, "containerd", "--preset", "cdi", "--write")
        assert f"{drop_in}: nothing to change" in again.stdout  # it decides, so it is the one that is changed


@pytest.mark.parametrize("release", ["lab12", "lab13"])
def test_podman_takes_it(release: str, request: pytest.FixtureRequest) -> None:
    lab: Lab = request.getfixturevalue(release)
    with files_as_before(lab, PODMAN), stand_in_runtime(lab):
        config(lab, "podman", "--preset", "rootful", "--write")
        image = podman_image(lab)
        run = ["podman", "run", "--rm", "--network=none", "--runtime=nvidia", image, "echo", "it runs"]
        assert lab.run(run).stdout == "it runs\n"
        info = json.loads(lab.run(["podman", "--runtime=nvidia", "info", "--format", "json"]).stdout)
        assert info["host"]["ociRuntime"]["path"] == RUNTIME


IOCTLS = """
import ctypes, errno, sys
libc = ctypes.CDLL(None, use_errno=True)
fd = open("/dev/null").fileno()
for text in sys.argv[1:]:
    number = int(text, 0)
    failed = libc.syscall(ctypes.c_long(16), ctypes.c_long(fd), ctypes.c_ulong(number), ctypes.c_ulong(0)) < 0
    print(text, errno.errorcode[ctypes.get_errno()] if failed else 0)
"""
#: number → whether the profile utility, compute, graphics lets it through to /dev/null, which knows none of them.
CASES = {
    0xC020462A: "ucg",  # RM_CONTROL
    0xFFFFFFFFC020462A: "ucg",  # the same from musl, whose ioctl takes an int
    0xC030462B: "ucg",  # RM_ALLOC
    0xC0984649: "",  # no escape of this number
    0xC038464E: "ucg",  # RM_MAP_MEMORY
    0xC0B8464A: "cg",  # RM_VID_HEAP_CONTROL
    0x30000001: "cg",  # UVM_INITIALIZE
    0x21: "cg",  # UVM_MAP_EXTERNAL_ALLOCATION
    0x3E: "",  # UVM_TOOLS_READ_PROCESS_MEMORY
    0xC040464D: "",  # RM_ACCESS_REGISTRY
    0xC0104639: "",  # RM_I2C_ACCESS
    0xC01046D3: "",  # XFER_CMD, which could hide any of the others
    0xC00446D8: "",  # SET_NUMA_STATUS
    0xC0404D4D: "",  # RM_ACCESS_REGISTRY under another letter: the driver would take it
    0x10000_C040464D: "",
    0xC040644D: "",  # and under that of DRM
    0xC0406400: "g",  # DRM_IOCTL_VERSION
    0xC0106D00: "g",  # NVKMS
    0x5401: "ucg",  # TCGETS
    0x541B: "ucg",  # FIONREAD
    0x5412: "",  # TIOCSTI
    0x541C: "",  # TIOCLINUX
    0x8927: "ucg",  # SIOCGIFHWADDR
    0x80045700: "",  # of a watchdog: nothing that a container needs
}


REFUSALS = ("EPERM", "ENOSYS")
"""Docker's default profile refuses with the first, podman's with the second. A device that knows no such ioctl says
ENOTTY."""


def ran(output: str) -> dict[int, bool]:
    return {int(line.split()[0], 0): line.split()[1] not in REFUSALS for line in output.splitlines()}


def expected(profile: str) -> dict[int, bool]:
    return {number: profile[0] in letters for number, letters in CASES.items()}


@pytest.fixture
def machine_x86_64(lab13: Lab) -> Lab:
    if lab13.run(["uname", "-m"]).stdout.strip() != "x86_64":
        pytest.skip("the numbers of system calls here are those of x86_64")
    return lab13


@pytest.mark.parametrize("profile", ["utility", "compute", "graphics"])
def test_seccomp_by_podman_and_docker(machine_x86_64: Lab, profile: str) -> None:
    lab, path = machine_x86_64, f"/etc/gpuiso-{profile}.json"
    default = "/usr/share/containers/seccomp.json"
    lab.run(["gpuiso", "hook", "seccomp", "--profile", profile, "--merge", default, "--output", path])
    mounts = ["--volume=/usr:/usr:ro", "--volume=/usr/lib:/lib:ro", "--volume=/usr/lib64:/lib64:ro"]
    command = ["/usr/bin/python3", "-c", IOCTLS, *map(hex, CASES)]
    for engine, image in (("podman", podman_image(lab)), ("docker", docker_image(lab))):
        run = [engine, "run", "--rm", "--network=none", f"--security-opt=seccomp={path}", *mounts, image, *command]
        assert ran(lab.run(run).stdout) == expected(profile), engine
    lab.run(["rm", path])


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_seccomp_of_a_bundle(machine_x86_64: Lab, runtime: str) -> None:
    lab = machine_x86_64

    def edit(spec: dict[str, Any]) -> None:
        spec["root"] = {"path": "rootfs", "readonly": True}
        spec["linux"]["seccomp"] = {
            "defaultAction": "SCMP_ACT_ERRNO",
            "architectures": ["SCMP_ARCH_X86_64"],
            "syscalls": [{"names": lab_syscalls(lab), "action": "SCMP_ACT_ALLOW"}],
        }
        for directory, target in (("/usr", "/usr"), ("/usr/lib", "/lib"), ("/usr/lib64", "/lib64")):
            mount = {"destination": target, "source": directory, "type": "bind", "options": ["bind", "ro"]}
            spec["mounts"].append(mount)

    path = bundle(lab, "/tmp/seccomp", ["/usr/bin/python3", "-c", IOCTLS, *map(hex, CASES)], edit)
    lab.run(["mkdir", "-p", *(f"{path}/rootfs/{name}" for name in ("usr", "lib", "lib64"))])
    lab.run(["gpuiso", "hook", "seccomp", "--merge", f"{path}/config.json", "--output", f"{path}/config.json"])
    assert ran(lab.run([runtime, "run", "--bundle", path, "seccomp-test"]).stdout) == expected("compute")
    lab.run(["rm", "-r", path])


def lab_syscalls(lab: Lab) -> list[str]:
    """What podman's default profile admits to everybody."""
    profile = json.loads(lab.get("/usr/share/containers/seccomp.json"))
    rules = [rule for rule in profile["syscalls"] if rule["action"] == "SCMP_ACT_ALLOW"]
    names = [name for rule in rules if not rule["args"] and not rule["includes"] for name in rule["names"]]
    return [*names, "arch_prctl"]
