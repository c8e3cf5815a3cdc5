# SPDX-License-Identifier: Apache-2.0
"""Rules on what systemd owns: a Docker container's scope, a service, a process of a service."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from tests.lab.access import open_in_container, open_in_lab
from tests.lab.host import Lab
from tests.lab.images import docker_image
from tests.tiers import requires

pytestmark = requires("lab")

POLICY = """gpuiso: 1
devices:
- allow default-nodes
- allow c 195:0 rw
- allow c 195:255 rw
"""
ALL_BUT_ONE = """gpuiso: 1
default: allow
devices:
- deny c 195:1 rwm
"""
NODES = ("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl")
HELD = ["ENXIO", "EPERM", "ENXIO"]
SHOWN = ["--property=DevicePolicy", "--property=DeviceAllow"]
TRY = "/opt/gpuiso/tests/lab_checks/try_every_call.py"
_numbers = count()


@pytest.fixture(params=["lab13", "lab12"])
def lab(request: pytest.FixtureRequest) -> Lab:
    booted: Lab = request.getfixturevalue(request.param)
    booted.put("/tmp/rules/one.yaml", POLICY.encode())
    booted.put("/tmp/rules/but.yaml", ALL_BUT_ONE.encode())
    return booted


def rules(lab: Lab, *arguments: str, code: int = 0) -> dict[str, Any]:
    done = lab.run(["gpuiso", "rules", *arguments, "--json"], check=False)
    assert done.returncode == code, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def container(lab: Lab) -> Iterator[str]:
    options = [f"--device={node}" for node in NODES]
    name = lab.run(["docker", "run", "-d", *options, docker_image(lab), "sleep", "1000"]).stdout.strip()
    yield name
    lab.run(["docker", "rm", "-f", name])


@pytest.fixture
def service(lab: Lab) -> Iterator[str]:
    name = f"rules-{os.getpid()}-{next(_numbers)}.service"
    lab.put(f"/run/systemd/system/{name}", b"[Service]\nExecStart=/bin/sleep 1000\n")
    lab.run(["systemctl", "daemon-reload"])
    lab.run(["systemctl", "start", name])
    yield name
    lab.sh('systemctl kill -s KILL "$1"; rm -rf /run/systemd/system*/"$1"*; systemctl daemon-reload', name)
    lab.run(["systemctl", "reset-failed", name], check=False)


def opens_in_container(lab: Lab, name: str) -> list[str]:
    return [open_in_container(lab, name, node) for node in NODES]


def opens_in_unit(lab: Lab, unit: str) -> list[str]:
    path = lab.sh('systemctl show -P ControlGroup "$1"', unit)
    return [open_in_lab(lab, node, cgroup=path) for node in NODES]


def test_on_a_running_container(lab: Lab, container: str) -> None:
    scope = f"docker-{container}.scope"
    assert opens_in_container(lab, container) == ["ENXIO"] * 3
    before = lab.run(["systemctl", "show", *SHOWN, scope]).stdout
    applied = rules(lab, "apply", "--container", container[:12], "/tmp/rules/one.yaml")
    assert applied["target"] == f"unit {scope}"
    assert len(applied["verified"]) == 2
    assert opens_in_container(lab, container) == HELD
    lab.run(["systemctl", "daemon-reload"])
    assert opens_in_container(lab, container) == HELD
    lab.run(["systemctl", "set-property", "--runtime", scope, "TasksMax=5000"])
    assert opens_in_container(lab, container) == HELD
    shown = rules(lab, "show", "--container", container)
    assert shown["drift"] == []
    assert shown["unit"]["DevicePolicy"] == "strict"
    rules(lab, "remove", "--container", container)
    assert opens_in_container(lab, container) == ["ENXIO"] * 3
    assert lab.run(["systemctl", "show", *SHOWN, scope]).stdout == before
    rules(lab, "remove", "--container", container, code=4)


def test_all_but_one_of_a_container_that_has_a_list(lab: Lab, container: str) -> None:
    applied = rules(lab, "apply", "--container", container, "/tmp/rules/but.yaml")
    assert any("has a list of its own" in note for note in applied["notes"])
    assert opens_in_container(lab, container) == HELD
    lab.run(["systemctl", "daemon-reload"])
    assert opens_in_container(lab, container) == HELD
    rules(lab, "remove", "--container", container)
    assert opens_in_container(lab, container) == ["ENXIO"] * 3


def test_what_the_container_engine_denies_is_no_success(lab: Lab) -> None:
    name = lab.run(["docker", "run", "-d", docker_image(lab), "sleep", "1000"]).stdout.strip()
    try:
        failed = rules(lab, "apply", "--container", name, "/tmp/rules/one.yaml", code=7)
        assert "the policy allows c 195:0" in failed["error"]["message"]
        assert "what had been done was undone" in failed["error"]["message"]
    finally:
        lab.run(["docker", "rm", "-f", name])


def test_on_a_service(lab: Lab, service: str) -> None:
    assert opens_in_unit(lab, service) == ["ENXIO"] * 3
    rules(lab, "apply", "--unit", service, "/tmp/rules/one.yaml")
    assert opens_in_unit(lab, service) == HELD
    lab.run(["systemctl", "daemon-reload"])
    assert opens_in_unit(lab, service) == HELD
    lab.run(["systemctl", "restart", service])
    assert opens_in_unit(lab, service) == HELD
    assert rules(lab, "show", "--unit", service)["drift"] == []
    lab.run(["systemctl", "set-property", "--runtime", service, "DeviceAllow=/dev/nvidia1 rw"])
    assert any("DeviceAllow" in line for line in rules(lab, "show", "--unit", service, code=1)["drift"])
    rules(lab, "remove", "--unit", service)
    assert opens_in_unit(lab, service) == ["ENXIO"] * 3
    lab.run(["systemctl", "daemon-reload"])
    assert opens_in_unit(lab, service) == ["ENXIO"] * 3
    assert lab.sh("find /run/systemd/system.control /etc/systemd/system.control -name '50-Device*'", check=False) == ""


def test_for_good(lab: Lab, service: str) -> None:
    rules(lab, "apply", "--unit", service, "--persistent", "/tmp/rules/one.yaml")
    drop_in = f"/etc/systemd/system.control/{service}.d/50-DeviceAllow.conf"
    assert b"DeviceAllow=/dev/char/195:0 rw" in lab.get(drop_in)
    rules(lab, "remove", "--unit", service)
    assert lab.run(["test", "-e", drop_in], check=False).returncode == 1


def test_a_process_of_a_service_gets_a_scope(lab: Lab, service: str) -> None:
    pid = lab.sh('systemctl show -P MainPID "$1"', service)
    applied = rules(lab, "apply", "--pid", pid, "/tmp/rules/one.yaml")
    scope = applied["target"].removeprefix("unit ")
    assert scope.startswith(f"gpuiso-{pid}-")
    assert opens_in_unit(lab, scope) == HELD
    lab.run(["systemctl", "daemon-reload"])
    assert opens_in_unit(lab, scope) == HELD
    assert lab.sh('grep ^0:: "/proc/$1/cgroup"', pid) == f"0::/system.slice/{scope}"
    rules(lab, "remove", "--pid", pid)
    assert lab.sh('grep ^0:: "/proc/$1/cgroup"', pid) == f"0::/system.slice/{service}"
    assert lab.sh('systemctl is-active "$1"', service) == "active"


def test_who_else_manages_the_tree_is_respected(lab: Lab, service: str) -> None:
    for cgroup, words in (
        ("/elsewhere", "belongs to"),
        ("/system.slice/elsewhere", "is systemd's and does not delegate"),
        (f"/system.slice/{service}/below", "is systemd's and does not delegate"),
    ):
        failed = rules(lab, "apply", "--cgroup", cgroup, "--create", "/tmp/rules/one.yaml", code=5)
        assert words in failed["error"]["message"] or "does not delegate" in failed["error"]["message"]
        assert not lab.host_cgroup(cgroup).exists()
    below = "/system.slice/lab-shell.service/own"
    rules(lab, "apply", "--cgroup", below, "--create", "/tmp/rules/one.yaml")
    rules(lab, "remove", "--cgroup", below)
    assert not lab.host_cgroup(below).exists()


@pytest.mark.parametrize("how", ["fail", "die"])
def test_a_failure_at_any_call_leaves_the_unit_as_it_was(lab: Lab, service: str, how: str) -> None:
    done = lab.run(["python3", TRY, service, how], timeout=300)
    met = json.loads(done.stdout)
    assert met["wrong"] == []
    assert met["calls"] > 10


def test_a_drop_in_is_what_systemd_reads(lab: Lab, service: str) -> None:
    made = rules(lab, "unit", service, "--policy", "/tmp/rules/one.yaml", "--write")
    try:
        lab.run(["systemctl", "daemon-reload"])
        lab.run(["systemctl", "restart", service])
        assert opens_in_unit(lab, service) == HELD
    finally:
        lab.run(["rm", "-rf", os.path.dirname(made["path"])])
