# SPDX-License-Identifier: Apache-2.0
"""Real containers and units, found by id and name with the process and the cgroup that their own engines name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.lab.host import Lab
from tests.lab.images import bundle, docker_image, podman_image
from tests.lab.rootless import MANAGER_CGROUP, run_rootless
from tests.tiers import requires

pytestmark = requires("lab")

FIND = """
import json, sys
from gpuiso.doctor.machine import Machine, Subject
from gpuiso.errors import NotFound
from gpuiso.host.live import LiveHost
machine = Machine(LiveHost())
for word in sys.argv[1:]:
    try:
        found = machine.containers.find(word)
    except NotFound as error:
        print(json.dumps({"error": error.message, "hint": error.hint}))
        continue
    names = ("id", "engine", "name", "runtime", "pid", "cgroup", "owner", "env")
    answer = {name: getattr(found, name) for name in names}
    if found.pid is not None:
        subject = Subject(machine, found.pid, asked=True)
        answer |= {"same": subject.container is found, "unit": subject.unit}
    print(json.dumps(answer))
"""
UNIT = """
import json, sys
from gpuiso.host.live import LiveHost
print(json.dumps(LiveHost().unit(sys.argv[1])))
"""


@pytest.fixture(params=["lab13", "lab12"])
def lab(request: pytest.FixtureRequest) -> Lab:
    """Each release in turn."""
    booted: Lab = request.getfixturevalue(request.param)
    return booted


def find(lab: Lab, *words: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lab.python(FIND, *words).stdout.splitlines()]


@dataclass(frozen=True)
class Started:
    id: str
    pid: int


@pytest.fixture
def docker(lab: Lab) -> Iterator[Started]:
    run = ["docker", "run", "--detach", "--name", "targets-docker", "--env", "GPUISO=1", docker_image(lab)]
    identity = lab.run(run).stdout.strip()
    yield Started(identity, int(lab.sh("docker inspect --format '{{.State.Pid}}' \"$1\"", identity)))
    lab.run(["docker", "rm", "--force", identity])


@pytest.fixture
def podman(lab: Lab) -> Iterator[Started]:
    run = ["podman", "run", "--detach", "--name", "targets-podman", "--env", "GPUISO=1", podman_image(lab)]
    identity = lab.run(run).stdout.strip()
    yield Started(identity, int(lab.sh("podman inspect --format '{{.State.Pid}}' \"$1\"", identity)))
    lab.run(["podman", "rm", "--force", "--time", "0", identity])


def test_docker(lab: Lab, docker: Started) -> None:
    for found in find(lab, docker.id, docker.id[:12], "targets-docker"):
        assert found["env"].pop("GPUISO") == "1"
        del found["env"]
        assert found == {
            "id": docker.id,
            "engine": "docker",
            "name": "targets-docker",
            "runtime": "runc",
            "pid": docker.pid,
            "cgroup": f"/system.slice/docker-{docker.id}.scope",
            "owner": None,
            "same": True,
            "unit": f"docker-{docker.id}.scope",
        }


def test_docker_that_hangs(lab: Lab, docker: Started) -> None:
    """Its own files tell as much."""
    lab.sh("kill -STOP $(cat /run/docker.pid)")
    try:
        (found,) = find(lab, "targets-docker")
    finally:
        lab.sh("kill -CONT $(cat /run/docker.pid)")
    assert (found["id"], found["pid"], found["runtime"]) == (docker.id, docker.pid, "runc")
    assert found["env"]["GPUISO"] == "1"


def test_docker_container_that_stopped(lab: Lab, docker: Started) -> None:
    lab.run(["docker", "kill", docker.id])
    (found,) = find(lab, "targets-docker")
    assert (found["id"], found["pid"], found["cgroup"]) == (docker.id, None, None)
    done = lab.run(["gpuiso", "doctor", "--container", "targets-docker"], check=False)
    assert (done.returncode, done.stdout) == (4, "")
    assert "docker container targets-docker is not running" in done.stderr


def test_podman(lab: Lab, podman: Started) -> None:
    for found in find(lab, podman.id, podman.id[:12], "targets-podman"):
        assert found["env"]["GPUISO"] == "1"
        assert (found["id"], found["engine"], found["name"]) == (podman.id, "podman", "targets-podman")
        assert (found["pid"], found["runtime"]) == (podman.pid, "crun" if lab.image.release == "trixie" else "runc")
        assert found["cgroup"] == f"/machine.slice/libpod-{podman.id}.scope"
        assert (found["same"], found["unit"]) == (True, f"libpod-{podman.id}.scope")


def test_podman_container_that_stopped(lab: Lab, podman: Started) -> None:
    lab.run(["podman", "kill", podman.id])
    lab.run(["podman", "wait", podman.id])
    (found,) = find(lab, "targets-podman")
    assert (found["id"], found["engine"], found["pid"]) == (podman.id, "podman", None)


def test_rootless_podman(lab: Lab) -> None:
    image = podman_image(lab, rootless=True)
    run = ["podman", "run", "--detach", "--name", "targets-rootless", "--network=none", image]
    identity = run_rootless(lab, run).stdout.strip()
    try:
        (found,) = find(lab, "targets-rootless")
        pid = run_rootless(lab, ["podman", "inspect", "--format", "{{.State.Pid}}", identity]).stdout.strip()
    finally:
        run_rootless(lab, ["podman", "rm", "--force", "--time", "0", identity])
    assert (found["id"], found["engine"], found["owner"], found["pid"]) == (identity, "podman", 1000, int(pid))
    assert found["cgroup"] == f"{MANAGER_CGROUP}/user.slice/libpod-{identity}.scope"
    assert (found["same"], found["unit"]) == (True, "user@1000.service")


@pytest.mark.parametrize("driver", ["", "--systemd-cgroup"], ids=["cgroupfs", "systemd"])
@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_runtimes_alone(lab: Lab, runtime: str, driver: str) -> None:
    name = f"targets-{runtime}"
    path = bundle(lab, f"/tmp/{name}", ["sleep", "infinity"])
    start = 'eval "$1" "$2" run --detach --bundle "$3" "$4" </dev/null >"/tmp/$4.log" 2>&1'
    done = lab.run(["sh", "-c", start, "sh", runtime, driver, path, name], check=False)
    if done.returncode != 0:
        log = lab.get(f"/tmp/{name}.log").decode()
        assert "RLIM_MEMLOCK" in log
        pytest.skip("this crun raises RLIMIT_MEMLOCK, which root without CAP_SYS_RESOURCE may not")
    try:
        (found,) = find(lab, name)
        state = json.loads(lab.run([runtime, "state", name]).stdout)
        place = lab.sh(r"sed -n 's/^0:://p' /proc/$1/cgroup", str(state["pid"]))
    finally:
        lab.run([runtime, "delete", "--force", name])
    assert (found["id"], found["engine"], found["pid"], found["same"]) == (name, runtime, state["pid"], True)
    assert place in (found["cgroup"], f"{found['cgroup']}/container")
    assert found["unit"] == (f"{runtime}-{name}.scope" if driver else None)


def test_what_is_not_there(lab: Lab, docker: Started) -> None:
    (answer,) = find(lab, "nosuch")
    assert answer["error"] == "no container 'nosuch'"
    assert f"targets-docker ({docker.id[:12]}, docker)" in answer["hint"]


def test_without_privileges_cgroups_tell_the_id(lab: Lab, docker: Started) -> None:
    done = lab.run(["runuser", "-u", "nobody", "--", "python3", "-c", FIND, docker.id[:12], "targets-docker"])
    by_id, by_name = map(json.loads, done.stdout.splitlines())
    assert (by_id["id"], by_id["engine"], by_id["pid"]) == (docker.id, "docker", docker.pid)
    assert "not permitted to look at" in by_name["hint"]


@pytest.fixture
def unit(lab: Lab) -> Iterator[str]:
    properties = ["DeviceAllow=/dev/nvidia0 rw", "DeviceAllow=char-pts r", "DevicePolicy=closed", "Environment=A=1"]
    options = [option for value in properties for option in ("--property", value)]
    name = "targets-unit.service"
    lab.run(["systemd-run", "--quiet", "--unit", name, *options, "sh", "-c", "sleep infinity & sleep infinity"])
    yield name
    lab.run(["systemctl", "stop", name])


def test_properties_of_a_unit(lab: Lab, unit: str) -> None:
    found = json.loads(lab.python(UNIT, unit).stdout)
    assert sorted(found["DeviceAllow"]) == [["/dev/nvidia0", "rw"], ["char-pts", "r"]]
    assert (found["DevicePolicy"], found["PrivateDevices"], found["Environment"]) == ("closed", False, ["A=1"])
    assert (found["Id"], found["ControlGroup"]) == (unit, f"/system.slice/{unit}")
    assert found["MainPID"] == int(lab.sh('systemctl show --value -p MainPID "$1"', unit))
    assert json.loads(lab.python(UNIT, "nosuch.service").stdout) is None


def test_properties_without_dbus() -> None:
    with Lab.boot("trixie") as lab:
        lab.sh("systemctl stop dbus.socket dbus.service")
        done = lab.python(UNIT, "docker.service", check=False)
    assert "gpuiso.errors.Unknown: unit docker.service: systemd could not be asked" in done.stderr


def test_the_doctor_examines_a_unit(lab: Lab, unit: str) -> None:
    main = int(lab.sh('systemctl show --value -p MainPID "$1"', unit))
    members = set(map(int, lab.sh('cat "/sys/fs/cgroup/system.slice/$1/cgroup.procs"', unit).split()))
    for name in (unit, unit.removesuffix(".service")):
        done = lab.run(["gpuiso", "doctor", "--unit", name, "--json"], check=False)
        examined = json.loads(done.stdout)["processes"]
        assert examined[0] == main
        assert members.issuperset(examined)
    done = lab.run(["gpuiso", "doctor", "--unit", "nosuch"], check=False)
    assert done.returncode == 4
    assert "no unit nosuch.service" in done.stderr


def test_the_doctor_examines_a_container(lab: Lab, docker: Started, podman: Started) -> None:
    for word, pid in (("targets-docker", docker.pid), ("targets-podman", podman.pid)):
        done = lab.run(["gpuiso", "doctor", "--container", word, "--json"], check=False)
        assert json.loads(done.stdout)["processes"] == [pid]
    done = lab.run(["gpuiso", "doctor", "--all", "--json"], check=False)
    assert (done.returncode, done.stderr, json.loads(done.stdout)["verdict"]) == (0, "", "no-gpu")
