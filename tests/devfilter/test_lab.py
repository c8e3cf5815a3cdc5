# SPDX-License-Identifier: Apache-2.0
"""Programs that systemd, runc and crun really write, judged beside the kernel that runs them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from gpuiso.devfilter.interpret import Access, interpret
from gpuiso.devfilter.levels import Level, judge
from gpuiso.devfilter.recover import recover
from gpuiso.devfilter.table import MASKS
from gpuiso.host.device_programs import query_device_programs
from gpuiso.policy.rule import DeviceType
from tests.devfilter.asking import asking
from tests.lab.host import Lab
from tests.lab.images import docker_image, podman_image
from tests.tiers import requires

pytestmark = requires("lab")

TYPES: tuple[DeviceType, ...] = ("b", "c")
NUMBERS = (
    (1, 3),
    (1, 5),
    (1, 11),
    (5, 0),
    (5, 2),
    (8, 0),
    (10, 200),
    (10, 229),
    (136, 4),
    (195, 0),
    (195, 1),
    (195, 255),
)
GRID = [Access(device, *numbers, mask) for device, numbers, mask in product(TYPES, NUMBERS, MASKS)]


@pytest.fixture(params=["lab13", "lab12"])
def lab(request: pytest.FixtureRequest) -> Lab:
    booted: Lab = request.getfixturevalue(request.param)
    return booted


def levels_of(top: Path, cgroup: Path) -> list[Level]:
    """The levels from the lab's root down to ``cgroup``."""
    paths = [cgroup, *cgroup.parents]
    paths = paths[: paths.index(top) + 1][::-1]
    return [Level(str(path), query_device_programs(str(path), str(path))) for path in paths]


def judged_beside_the_kernel(lab: Lab, path: str) -> tuple[list[str], list[str]]:
    """Judge a cgroup of the lab for the whole grid; returns the owners and the rules of its programs."""
    cgroup = lab.host_cgroup(path)
    levels = levels_of(lab.cgroup, cgroup)
    with asking(GRID, cgroup=cgroup) as ask:
        met = ["allow" if allowed else "deny" for allowed in ask()]
    assert [judge(levels, access).value for access in GRID] == met
    assert set(met) == {"allow", "deny"}
    programs = levels[-1].programs
    assert programs
    for program in programs:
        assert program.insns is not None
        recovered = recover(program.insns)
        for access in GRID:
            assert recovered.verdict(access).value == interpret(program.insns, access).value
    owners: list[str] = [program.owner.name for program in judge(levels, GRID[0]).levels[-1].programs]
    return owners, [str(line) for program in programs for line in recover(program.insns or b"").lines]


@pytest.fixture
def unit(lab: Lab) -> Iterator[str]:
    name = f"devfilter-{os.getpid()}.service"
    yield name
    lab.run(["systemctl", "kill", "-s", "KILL", name], check=False)
    lab.run(["systemctl", "reset-failed", name], check=False)


@pytest.mark.parametrize(
    ("properties", "rules"),
    [
        (["DevicePolicy=closed", "DeviceAllow=/dev/nvidia0 rw"], ["allow c 195:0 rw"]),
        (
            ["DevicePolicy=strict", "DeviceAllow=char-mem r", "DeviceAllow=block-* rwm"],
            ["allow b *:* rwm", "allow c 1:* r"],
        ),
        (["DevicePolicy=strict", "DeviceAllow=/dev/nvidiactl", "DeviceAllow=/dev/null"], ["allow c 195:255 rwm"]),
        (["PrivateDevices=yes"], ["allow c 1:3 rwm"]),
    ],
    ids=["closed", "strict", "one-node", "private-devices"],
)
def test_services(lab: Lab, unit: str, properties: list[str], rules: list[str]) -> None:
    options = [f"--property={value}" for value in properties]
    lab.run(["systemd-run", f"--unit={unit}", *options, "sleep", "1000"])
    path = lab.sh('systemctl show -P ControlGroup "$1"', unit)
    owners, found = judged_beside_the_kernel(lab, path)
    assert owners == ["systemd"]
    assert set(rules) <= set(found)


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_containers(lab: Lab, engine: str) -> None:
    image = docker_image(lab) if engine == "docker" else podman_image(lab)
    options = ["--device=/dev/nvidia0:/dev/nvidia0:rw", "--device-cgroup-rule=c 10:229 r"]
    container = lab.run([engine, "run", "-d", *options, image, "sleep", "1000"]).stdout.strip()
    try:
        inspect = [engine, "inspect", "--format", "{{.State.Pid}}", container]
        pid = lab.host_pid(int(lab.run(inspect).stdout))
        line = next(ln for ln in Path(f"/proc/{pid}/cgroup").read_text().splitlines() if ln.startswith("0::"))
        path = "/" + line.split("::", 1)[1].split(lab.cgroup.name, 1)[1].lstrip("/")
        owners, found = judged_beside_the_kernel(lab, path)
    finally:
        lab.run([engine, "rm", "-f", container])
    runtime = "runc" if engine == "docker" else lab.sh("podman info --format '{{.Host.OCIRuntime.Name}}'")
    assert owners == [runtime]
    assert {"allow c 195:0 rw", "allow c 10:229 r"} <= set(found)
