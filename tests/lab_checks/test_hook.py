# SPDX-License-Identifier: Apache-2.0
"""The hook under real runtimes and engines: what containers may open, for how long, and what a failure leaves.

No driver stands behind the lab's nodes: ENXIO says that the device cgroup let the open pass.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gpuiso.cdi.emit import to_yaml
from gpuiso.cdi.generate import Options, generate
from gpuiso.gpu.inventory import build_inventory
from gpuiso.hookset.tables import gpu_document
from tests.cdi.fake_host import FakeHost
from tests.cdi.nvidia_host import DEVICES, nvidia_host
from tests.lab.access import open_in_container
from tests.lab.host import Lab
from tests.lab.images import bundle, docker_image, podman_image
from tests.lab.rootless import run_rootless
from tests.tiers import requires

pytestmark = requires("lab")

NODES = ("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl")
FIRST_ONLY = ["ENXIO", "EPERM", "ENXIO"]
HOOKS_D = "/etc/containers/oci/hooks.d"
POLICY = b"""gpuiso: 1
devices:
  - allow default-nodes
  - allow c *:* m
  - allow b *:* m
  - allow /dev/nvidia0
  - allow /dev/nvidiactl
gpu.max: 50000 100000
"""
# systemd has no deny, so this one is held by the program alone.
WITH_A_HOLE = b"gpuiso: 1\ndefault: allow\ndevices:\n  - deny /dev/nvidia1 rw\n"


def fake_host(lab: Lab) -> FakeHost:
    """The lab's nodes with a made-up driver around them; the lab has none that could be asked."""
    return nvidia_host(2, devices=DEVICES | {"nvidia-uvm": int(lab.sh("stat -c %Hr /dev/nvidia-uvm"))})


def furnish(lab: Lab) -> None:
    """Install the hook, two policies, and the table of GPUs that the lab's own refresh cannot fill."""
    lab.put("/etc/gpuiso/policy.d/first.yaml", POLICY)
    lab.put("/etc/gpuiso/policy.d/hole.yaml", WITH_A_HOLE)
    lab.run(["gpuiso", "hook", "install"])
    lab.run(["gpuiso", "hook", "refresh"])
    host = fake_host(lab)
    lab.put("/run/gpuiso/hook/gpus.json", json.dumps(gpu_document(host, build_inventory(host))).encode())


def unfurnish(lab: Lab) -> None:
    lab.run(["gpuiso", "hook", "install", "--remove"])
    lab.sh("rm -rf /run/gpuiso /etc/gpuiso /run/cdi /etc/cdi/nvidia.yaml")


@pytest.fixture(params=["lab13", "lab12"])
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    lab: Lab = request.getfixturevalue(request.param)
    furnish(lab)
    yield lab
    unfurnish(lab)


@pytest.fixture
def newest(lab13: Lab) -> Iterator[Lab]:
    furnish(lab13)
    yield lab13
    unfurnish(lab13)


@pytest.fixture
def started(request: pytest.FixtureRequest) -> Iterator[list[tuple[Lab, str, str]]]:
    """(lab, engine, name) of what a test starts; removed afterwards."""
    containers: list[tuple[Lab, str, str]] = []
    yield containers
    for lab, engine, name in containers:
        remove = {"docker": ["rm", "-f"], "podman": ["rm", "-f", "-t", "0"]}.get(engine, ["delete", "-f"])
        lab.run([engine, *remove, name], check=False)


def make_bundle(lab: Lab, name: str, edit: Callable[[dict[str, Any]], None] = lambda config: None) -> str:
    """A bundle with the nodes of both GPUs, all of which the runtime allows; it may make nodes."""

    def with_gpus(config: dict[str, Any]) -> None:
        numbers = [{"type": "c", "major": 195, "minor": minor} for minor in (0, 1, 255)]
        nodes = [{"path": path, "fileMode": 0o666, **one} for path, one in zip(NODES, numbers, strict=True)]
        config["linux"]["devices"] = nodes
        # One by one: systemd leaves a rule for a whole major out while no driver is behind it.
        config["linux"]["resources"]["devices"] += [{"allow": True, "access": "rwm", **one} for one in numbers]
        config["linux"]["cgroupsPath"] = f"system.slice:hook:{name}"
        config["root"]["readonly"] = False
        for kind in config["process"]["capabilities"].values():
            kind.append("CAP_MKNOD")
        edit(config)

    return bundle(lab, f"/var/tmp/{name}", ["sleep", "infinity"], with_gpus)


def run_bundle(lab: Lab, runtime: str, path: str, name: str) -> str:
    """Start it with the systemd driver; what the runtime says when it fails, or nothing."""
    # The container keeps the standard streams it is started with.
    script = '"$1" --systemd-cgroup run -d --bundle "$2" "$3" </dev/null >/dev/null 2>"$2/err" || cat "$2/err"'
    return lab.sh(script, runtime, path, name)


def opens(lab: Lab, engine: str, name: str, *nodes: str) -> list[str]:
    return [open_in_container(lab, name, node, engine=engine) for node in nodes or NODES]


def make_nodes(lab: Lab, engine: str, name: str) -> None:
    """mknod inside, of the forbidden GPU too, where the rules let it."""
    for minor in (0, 1, 255):
        lab.run([engine, "exec", name, "mknod", f"/tmp/n{minor}", "c", "195", str(minor)], check=False)


def runtimes_of(lab: Lab) -> list[str]:
    """Debian 12's crun needs CAP_SYS_RESOURCE, which root does not have on every machine."""
    return ["runc"] if lab.image.release == "bookworm" else ["runc", "crun"]


@pytest.mark.parametrize("options", [["--gpus", "0"], ["--policy", "first"], ["--policy", "hole"]])
def test_bundles_keep_to_their_gpus_through_all_that_systemd_and_runtimes_do(
    lab: Lab, started: list[tuple[Lab, str, str]], options: list[str]
) -> None:
    for runtime in runtimes_of(lab):
        name = f"hook-{runtime}"
        path = make_bundle(lab, name)
        lab.run(["gpuiso", "hook", "inject", "--write", *options, f"{path}/config.json"])
        started.append((lab, runtime, name))
        assert run_bundle(lab, runtime, path, name) == ""
        assert opens(lab, runtime, name) == FIRST_ONLY
        make_nodes(lab, runtime, name)
        if "--policy" in options:
            assert opens(lab, runtime, name, "/tmp/n0", "/tmp/n1", "/tmp/n255") == FIRST_ONLY
        else:
            assert opens(lab, runtime, name, "/tmp/n1") == ["ENOENT"]
        lab.run(["systemctl", "daemon-reload"])
        assert opens(lab, runtime, name) == FIRST_ONLY
        lab.run([runtime, "pause", name])
        lab.run([runtime, "resume", name])
        assert opens(lab, runtime, name) == FIRST_ONLY
        lab.run(["systemctl", "set-property", "--runtime", f"hook-{name}.scope", "TasksMax=5000"])
        assert opens(lab, runtime, name) == FIRST_ONLY
        governed = lab.sh("ls /run/gpuiso/govern 2>/dev/null || true")
        assert (".json" in governed) == (options[-1] == "first")
        lab.run([runtime, "delete", "-f", name])
        assert lab.sh("ls /run/gpuiso/govern 2>/dev/null || true") == ""


def test_a_policy_gives_what_the_runtime_did_not(newest: Lab, started: list[tuple[Lab, str, str]]) -> None:
    """Only the administrator's: the same policy by annotation takes away and no more."""

    def without_gpus(config: dict[str, Any]) -> None:
        del config["linux"]["resources"]["devices"][-len(NODES) :]

    for name, options in (("hook-own", ["--policy", "first"]), ("hook-asked", [])):
        path = make_bundle(newest, name, without_gpus)
        newest.run(["gpuiso", "hook", "inject", "--write", *(options or ["--gpus", "all"]), f"{path}/config.json"])
        if not options:
            config = json.loads(newest.get(f"{path}/config.json"))
            config["annotations"] = {"gpuiso.policy": "first"}
            config["linux"]["devices"] = []  # the runtime allows the nodes that it makes
            newest.put(f"{path}/config.json", json.dumps(config).encode())
        else:
            config = json.loads(newest.get(f"{path}/config.json"))
            config["linux"]["devices"] = []
            newest.put(f"{path}/config.json", json.dumps(config).encode())
        started.append((newest, "runc", name))
        assert run_bundle(newest, "runc", path, name) == ""
        make_nodes(newest, "runc", name)
        found = opens(newest, "runc", name, "/tmp/n0", "/tmp/n1")
        assert found == (["ENXIO", "EPERM"] if options else ["EPERM", "EPERM"])
        if options:
            newest.run(["systemctl", "set-property", "--runtime", f"hook-{name}.scope", "TasksMax=5000"])
            assert opens(newest, "runc", name, "/tmp/n0", "/tmp/n1") == ["ENXIO", "EPERM"]


def test_podman_calls_the_hook_for_annotated_containers(lab: Lab, started: list[tuple[Lab, str, str]]) -> None:
    image = podman_image(lab)
    nodes = [f"--device={node}" for node in NODES]
    common = ["podman", "run", "-d", "--network=none", f"--hooks-dir={HOOKS_D}", *nodes]
    for name, options in (
        ("hook-none", []),
        ("hook-first", ["--annotation=gpuiso.gpus=0", "--annotation=gpuiso.gpu.max=30000 100000"]),
    ):
        started.append((lab, "podman", name))
        lab.run([*common, "--name", name, *options, image, "sleep", "infinity"])
        assert opens(lab, "podman", name) == (FIRST_ONLY if options else ["ENXIO"] * 3)
    lab.run(["systemctl", "daemon-reload"])
    assert opens(lab, "podman", "hook-first") == FIRST_ONLY
    assert '"30000 100000"' in lab.sh("cat /run/gpuiso/govern/*")
    lab.run(["podman", "rm", "-f", "-t", "0", "hook-first"])
    assert lab.sh("ls /run/gpuiso/govern") == ""


def test_hooks_d_as_crio_reads_it(newest: Lab, started: list[tuple[Lab, str, str]]) -> None:
    """CRI-O puts the hook of every file whose ``when`` matches into the config of the container."""
    hooks: dict[str, list[Any]] = {}
    for file in newest.sh(f"ls {HOOKS_D}/*.json").split():
        definition = json.loads(newest.get(file))
        assert (definition["version"], definition["when"]) == ("1.0.0", {"annotations": {"^gpuiso\\.": ".*"}})
        for stage in definition["stages"]:
            hooks.setdefault(stage, []).append(definition["hook"])

    def edit(config: dict[str, Any]) -> None:
        config["hooks"] = hooks
        config["annotations"] = {"gpuiso.gpus": "nvidia:0", "io.kubernetes.cri-o.Annotations": "{}"}

    path = make_bundle(newest, "hook-crio", edit)
    started.append((newest, "crun", "hook-crio"))
    assert run_bundle(newest, "crun", path, "hook-crio") == ""
    assert opens(newest, "crun", "hook-crio") == FIRST_ONLY


EVIL = ["LD_PRELOAD=/evil.so", "PYTHONPATH=/", "PYTHONHOME=/", "PATH=/evil:/bin", "PYTHONSTARTUP=/evil.py"]


def test_docker_with_cdi(newest: Lab, started: list[tuple[Lab, str, str]]) -> None:
    """Devices and driver files by CDI, our one hook for the rest, a policy beside it, and a hostile environment."""
    spec = generate(fake_host(newest), Options(hooks="gpuiso")).spec
    for mount in spec.container_edits.mounts:
        newest.put(mount.host_path, b"of the driver", mode=0o755)
    newest.put("/etc/cdi/nvidia.yaml", to_yaml(spec).encode())
    started.append((newest, "docker", "hook-docker"))
    env = [option for entry in EVIL for option in ("--env", entry)]
    devices = ["--device=nvidia.com/gpu=all", "--device=gpuiso.dev/policy=first"]
    command = ["docker", "run", "-d", "--name", "hook-docker", "--network=none", "--cap-add=MKNOD", *env, *devices]
    newest.run([*command, docker_image(newest), "/bin/sleep", "infinity"])
    assert opens(newest, "docker", "hook-docker") == FIRST_ONLY
    make_nodes(newest, "docker", "hook-docker")
    newest.run(["systemctl", "daemon-reload"])
    newest.run(["docker", "pause", "hook-docker"])
    newest.run(["docker", "unpause", "hook-docker"])
    assert opens(newest, "docker", "hook-docker") == FIRST_ONLY
    library = "/usr/lib/x86_64-linux-gnu"
    listed = newest.run(["docker", "exec", "hook-docker", "/bin/ls", "-l", library]).stdout
    assert "libcuda.so -> libcuda.so.1" in listed
    newest.run(["docker", "cp", "hook-docker:/etc/ld.so.cache", "/tmp/hook.cache"])
    cache = newest.sh("/sbin/ldconfig -p -C /tmp/hook.cache")
    assert f"libcuda.so.1 (libc6,x86-64) => {library}/libcuda.so.1" in cache
    profile = "/etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf"
    assert "0x3" in newest.run(["docker", "exec", "hook-docker", "/bin/cat", profile]).stdout
    # A second start finds its own work.
    newest.run(["docker", "restart", "-t", "0", "hook-docker"])
    assert opens(newest, "docker", "hook-docker") == FIRST_ONLY


def test_without_an_environment_of_its_own_a_hook_refuses_the_containers(
    newest: Lab, started: list[tuple[Lab, str, str]]
) -> None:
    """CVE-2025-23266: runc starts createContainer hooks with the container's environment if they bring none."""

    def edit(config: dict[str, Any]) -> None:
        hook = {"path": "/usr/bin/gpuiso-hook", "args": ["gpuiso-hook", "createContainer", "--link", "a::/b"]}
        config["hooks"] = {"createContainer": [hook]}
        config["process"]["env"].append("LD_LIBRARY_PATH=/evil")

    path = make_bundle(newest, "hook-bare", edit)
    started.append((newest, "runc", "hook-bare"))
    assert "started with LD_LIBRARY_PATH set: the hook's definition must give its own env" in run_bundle(
        newest, "runc", path, "hook-bare"
    )
    assert newest.sh(f"ls {path}/rootfs/b 2>&1 || true").endswith("No such file or directory")


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_a_container_whose_hook_fails_does_not_start(
    newest: Lab, started: list[tuple[Lab, str, str]], runtime: str
) -> None:
    name = f"hook-fails-{runtime}"

    def edit(config: dict[str, Any]) -> None:
        work = ["--link", "a::/opt/made/b", "--link", "a::/etc"]  # the second cannot be: /etc is a directory
        hook = {"path": "/usr/bin/gpuiso-hook", "args": ["gpuiso-hook", "createContainer", *work], "env": ["A=b"]}
        config["hooks"] = {"createContainer": [hook]}

    path = make_bundle(newest, name, edit)
    newest.run(["gpuiso", "hook", "inject", "--write", "--policy", "first", f"{path}/config.json"])
    before = newest.sh("find / -xdev -path /proc -prune -o -path /run/systemd -prune -o -name '*gpuiso*' -print | sort")
    files = newest.sh(f"find {path}/rootfs | sort")
    started.append((newest, runtime, name))
    says = run_bundle(newest, runtime, path, name)
    # crun does not pass on what a hook says; the journal has it.
    assert ("cannot link /etc in the container" if runtime == "runc" else "error executing hook") in says
    assert newest.run([runtime, "state", name], check=False).returncode != 0
    newest.wait_for(["sh", "-c", f"! systemctl is-active --quiet hook-{name}.scope"])
    assert newest.sh(f"find {path}/rootfs -newer {path}/config.json -name '*made*' | sort") == ""
    assert set(newest.sh(f"find {path}/rootfs | sort").split()) - set(files.split()) <= {f"{path}/rootfs/dev/nvidia0"}
    after = newest.sh("find / -xdev -path /proc -prune -o -path /run/systemd -prune -o -name '*gpuiso*' -print | sort")
    assert after == before
    assert newest.sh("ls /run/gpuiso/govern 2>/dev/null || true") == ""
    journal = newest.wait_for(["sh", "-c", "journalctl -q -o cat -t gpuiso-hook | grep 'cannot link /etc'"]).stdout
    assert f"createContainer {name}: cannot link /etc in the container" in journal


def test_rootless_engines_cannot_hold_rules_and_say_so(newest: Lab) -> None:
    image = podman_image(newest, rootless=True)
    command = ["podman", "run", "--rm", "--network=none", f"--hooks-dir={HOOKS_D}"]
    refused = run_rootless(newest, [*command, "--annotation=gpuiso.gpus=0", image, "true"], check=False)
    assert refused.returncode != 0
    journal = newest.wait_for(["sh", "-c", "journalctl -q -o cat -t gpuiso-hook | grep 'gpu.max need root'"])
    assert "a rootless engine, or one in a user namespace, cannot hold them" in journal.stdout
    assert run_rootless(newest, [*command, image, "echo", "started"]).stdout == "started\n"


def test_the_loader_finds_what_was_put_into_its_cache(newest: Lab) -> None:
    """glibc's own loader, with the lab itself for a container."""
    newest.sh("cp /etc/ld.so.cache /tmp/cache.kept; mkdir -p /opt/odd /tmp/loader")
    newest.sh("cp /lib/x86_64-linux-gnu/libm.so.6 /opt/odd/libodd-driver.so.1")
    newest.put("/tmp/loader/config.json", b'{"root": {"path": "/"}}')
    load = "import ctypes; ctypes.CDLL('libodd-driver.so.1').cos; print('loaded')"
    assert newest.python(load, check=False).returncode != 0
    try:
        state = json.dumps({"id": "l", "bundle": "/tmp/loader", "pid": 1})
        hook = ["env", "-i", "gpuiso-hook", "createContainer", "--library", "/opt/odd=libodd-driver.so.1"]
        newest.run(["env", "-i", "/usr/bin/gpuiso-hook", *hook[3:]], input=state)
        assert newest.python(load).stdout == "loaded\n"
        assert newest.sh("ldconfig -p | grep -c libc.so.6") != "0"
    finally:
        newest.sh("cp /tmp/cache.kept /etc/ld.so.cache; rm -rf /opt/odd /tmp/loader")


UNIT = """
import sys
from gpuiso.hook import dbus
from gpuiso.hook.undo import Undo
from gpuiso.hook.unit import add_devices, set_devices
if sys.argv[1] == "bus":
    dbus._PRIVATE = "/run/none"
undo = Undo()
set_devices(sys.argv[2], ("strict", [("/dev/char/1:5", "rw"), ("char-pts", "rw")]), undo)
add_devices(sys.argv[2], [("/dev/char/1:5", "rw"), ("/dev/char/1:7", "r")], undo)
bus = dbus.Bus()
print(bus.get_property(sys.argv[2], "Service", "DevicePolicy").text())
print(bus.get_property(sys.argv[2], "Service", "DeviceAllow").pairs())
print(undo.take_back())
print(bus.get_property(sys.argv[2], "Service", "DevicePolicy").text())
print(bus.get_property(sys.argv[2], "Service", "DeviceAllow").pairs())
"""


@pytest.mark.parametrize("socket", ["private", "bus"])
def test_a_unit_is_changed_and_gets_back_what_it_had(lab: Lab, socket: str) -> None:
    unit = "hook-1-odd\\x2dname.service"
    properties = ["--property=DevicePolicy=closed", "--property=DeviceAllow=/dev/null r"]
    lab.run(["systemd-run", "--quiet", f"--unit={unit}", *properties, "sleep", "60"])
    try:
        policy, allow, left, policy_after, allow_after = lab.python(UNIT, socket, unit).stdout.splitlines()
        assert (policy, left, policy_after) == ("strict", "[]", "closed")
        assert sorted(ast.literal_eval(allow)) == [("/dev/char/1:5", "rw"), ("/dev/char/1:7", "r"), ("char-pts", "rw")]
        assert allow_after == "[('/dev/null', 'r')]"
    finally:
        lab.run(["systemctl", "stop", unit])


def test_systemd_says_why_it_refuses(lab: Lab) -> None:
    code = "from gpuiso.hook.undo import Undo\nfrom gpuiso.hook.unit import set_devices\n"
    code += "set_devices('none.service', ('sometimes', []), Undo())"
    done = lab.python(code, check=False)
    assert "HookError: systemd refuses SetUnitProperties: " in done.stderr
