# SPDX-License-Identifier: Apache-2.0
"""What the tests of this package share: containers and services of a lab, what the doctor finds, and its fixes."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

from tests.lab.access import OPEN, open_in_container
from tests.lab.faults import allow_behind_systemd
from tests.lab.host import Lab
from tests.lab.images import docker_image
from tests.lab.node import CONTROL_MINOR, NVIDIA_MAJOR
from tests.lab_checks.examine import UUIDS

UUID = UUIDS[0]
NODES = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")


def found(lab: Lab, pid: int = 0) -> list[dict[str, Any]]:
    """Errors and warnings of the doctor about a process of the lab (0: the host), most severe first."""
    findings: list[dict[str, Any]] = json.loads(lab.run(["python3", "-m", "tests.lab_checks.examine", str(pid)]).stdout)
    return [finding for finding in findings if finding["severity"] != "info"]


def rules(lab: Lab, pid: int = 0) -> dict[str, str]:
    """The same, as severities by rule."""
    return {finding["rule"]: finding["severity"] for finding in found(lab, pid)}


def only(lab: Lab, rule: str, pid: int = 0) -> dict[str, Any]:
    """The one finding there is, which must be of ``rule``."""
    findings = found(lab, pid)
    assert [finding["rule"] for finding in findings] == [rule], findings
    return findings[0]


def mend(lab: Lab, finding: dict[str, Any], number: int = 0) -> None:
    """Runs the command of a fix, as root."""
    command = finding["fix"][number]["command"]
    lab.sh(command.replace("sudo ", ""))


def numbers(lab: Lab) -> dict[str, tuple[int, int]]:
    """Major and minor of the nodes that a container with GPU 0 gets."""
    uvm = int(lab.sh("stat -c %Hr /dev/nvidia-uvm"))
    return dict(zip(NODES, ((NVIDIA_MAJOR, 0), (NVIDIA_MAJOR, CONTROL_MINOR), (uvm, 0), (uvm, 1)), strict=True))


@contextlib.contextmanager
def docker_container(lab: Lab, *options: str) -> Iterator[tuple[str, int]]:
    """A container that sleeps: its id and its pid in the lab."""
    image = docker_image(lab)
    container = lab.run(["docker", "run", "--detach", "--network=none", *options, image]).stdout.strip()
    try:
        yield container, int(lab.run(["docker", "inspect", "--format", "{{.State.Pid}}", container]).stdout)
    finally:
        lab.run(["docker", "rm", "--force", container], check=False)


def put_nodes(lab: Lab, container: str) -> None:
    """Makes the nodes of GPU 0 in a container, as a hook puts them there; its filter does not know of them."""
    for path, (major, minor) in numbers(lab).items():
        lab.run(["docker", "exec", container, "mknod", "-m", "666", path, "c", str(major), str(minor)])


def hook(lab: Lab, container: str, *, no_cgroups: bool = False) -> None:
    """What NVIDIA's legacy hook does to a container: nodes into its /dev, and rules into its device program."""
    put_nodes(lab, container)
    if not no_cgroups:
        allow_behind_systemd(lab.host_cgroup(f"/system.slice/docker-{container}.scope"), list(numbers(lab).values()))


def opened(lab: Lab, container: str) -> set[str]:
    """What opens of the nodes in a container give: ENXIO is the absent driver, so the open was allowed."""
    return {open_in_container(lab, container, path) for path in NODES}


@contextlib.contextmanager
def service(lab: Lab, name: str, settings: Sequence[str]) -> Iterator[int]:
    """A service of a unit file with these settings, which sleeps: its pid in the lab."""
    text = "\n".join(["[Service]", "ExecStart=/usr/bin/sleep infinity", *settings, ""])
    lab.put(f"/etc/systemd/system/{name}", text.encode())
    lab.run(["systemctl", "daemon-reload"])
    lab.run(["systemctl", "start", name])
    try:
        yield main_pid(lab, name)
    finally:
        lab.run(["systemctl", "stop", name], check=False)
        lab.sh(
            'rm -rf "/etc/systemd/system/$1" "/etc/systemd/system/$1.d" "/etc/systemd/system.control/$1.d";'
            " systemctl daemon-reload",
            name,
        )


def main_pid(lab: Lab, name: str) -> int:
    return int(lab.sh('systemctl show -P MainPID "$1"', name))


def open_as(lab: Lab, pid: int, node: str, *, user: str = "") -> str:
    """What opening a node gives within the namespaces and the cgroup of a process (errno's name, 0)."""
    cgroup = lab.sh('sed -n s/^0:://p "/proc/$1/cgroup"', str(pid))
    who = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"] if user else []
    command = ["nsenter", "--target", str(pid), "--mount", "--", *who, "python3", "-c", OPEN, node, "rw"]
    return lab.run(command, cgroup=cgroup).stdout.strip()
