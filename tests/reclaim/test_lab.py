# SPDX-License-Identifier: Apache-2.0
"""The gate under real systemd and Docker: services go into a scope, containers stay where their engine reaches them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.lab.host import Lab
from tests.lab.images import docker_image
from tests.tiers import requires

pytestmark = requires("lab")

# Closes /dev/nvidia0 (195:0) to process argv[1] and prints what was seen at each point.
GATE = """
import json, sys
from pathlib import Path
from gpuiso.apply.calls import Calls
from gpuiso.apply.state import State
from gpuiso.gpu.model import DeviceNode, Gpu
from gpuiso.host.live import LiveHost
from gpuiso.host.process_tree import read_cgroup
from gpuiso.reclaim.gate import PlaceGate
from gpuiso.reclaim.target import Target

pid = int(sys.argv[1])
host = LiveHost()
node = DeviceNode("/dev/nvidia0", "gpu", 195, 0, None, True)
gpus = (Gpu("nvidia", 0, "0000:01:00.0", "nvidia", nodes=(node,)),)
gate = PlaceGate(host, Calls(), State(Path("/run/gpuiso-test")))
seen = {"before": read_cgroup(pid)}
memos = []
with Target.open(host, pid) as target:
    seen["told"] = gate.describe(target, gpus)
    memo = gate.close(target, gpus, lambda memo: memos.append(json.dumps(memo)))
seen["inside"] = read_cgroup(pid)
seen["unit"] = memo["unit"]
seen["probe"] = [host.probe(pid, "/dev/nvidia0"), host.probe(pid, "/dev/null")]
gate.freeze(memo)
seen["frozen"] = "frozen 1" in Path(memo["mount"] + memo["cgroup"], "cgroup.events").read_text()
gate = PlaceGate(LiveHost(), Calls(), State(Path("/run/gpuiso-test")))
seen["opened"] = gate.open(json.loads(memos[-1]))
seen["again"] = gate.open(json.loads(memos[-1]))
seen["home"] = read_cgroup(pid)
seen["probe at home"] = LiveHost().probe(pid, "/dev/nvidia0")
print(json.dumps(seen))
"""


@pytest.fixture(params=["lab13", "lab12"])
def lab(request: pytest.FixtureRequest) -> Lab:
    booted: Lab = request.getfixturevalue(request.param)
    return booted


def closed(lab: Lab, pid: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(lab.python(GATE, str(pid)).stdout)
    return found


def main_pid(lab: Lab, unit: str) -> int:
    return int(lab.run(["systemctl", "show", "--property=MainPID", "--value", unit]).stdout)


def test_a_service(lab: Lab) -> None:
    lab.run(["systemd-run", "--unit=job", "--collect", "sh", "-c", "sleep 600 & exec sleep 600"])
    try:
        pid = main_pid(lab, "job.service")
        seen = closed(lab, pid)
        assert seen["unit"] == seen["inside"].rpartition("/")[2]
        assert seen["unit"].endswith(".scope")
        assert seen["frozen"]
        assert seen["probe"] == ["EPERM", None]
        assert seen["home"] == seen["before"] == "/system.slice/job.service"
        assert seen["again"] == []
        assert seen["probe at home"] != "EPERM"
        assert lab.run(["systemctl", "is-active", "job.service"]).stdout.strip() == "active"
        assert main_pid(lab, "job.service") == pid
    finally:
        lab.run(["systemctl", "stop", "job.service"], check=False)


def test_a_scope_that_ends_when_it_is_left(lab: Lab) -> None:
    """The process had it for itself: afterwards it stays in the new scope, and the rules are lifted."""
    lab.sh("systemd-run --scope --unit=shell --collect sleep 600 >/dev/null 2>&1 &")
    lab.wait_for(["systemctl", "is-active", "--quiet", "shell.scope"])
    pid = int(lab.sh("cat /sys/fs/cgroup/system.slice/shell.scope/cgroup.procs"))
    try:
        seen = closed(lab, pid)
        assert seen["probe"] == ["EPERM", None]
        assert seen["probe at home"] != "EPERM"
    finally:
        lab.run(["kill", str(pid)], check=False)


def test_a_container(lab: Lab) -> None:
    lab.run(["docker", "rm", "--force", "job"], check=False)
    lab.run(["docker", "run", "--detach", "--name", "job", docker_image(lab)])
    try:
        pid = int(lab.run(["docker", "inspect", "--format", "{{.State.Pid}}", "job"]).stdout)
        seen = closed(lab, pid)
        assert seen["unit"] is None
        assert seen["inside"].startswith(f"{seen['before']}/gpuiso-")
        assert seen["frozen"]
        assert seen["home"] == seen["before"]
        assert lab.run(["docker", "exec", "job", "true"]).returncode == 0
        assert lab.run(["docker", "stop", "--time", "1", "job"]).returncode == 0
    finally:
        lab.run(["docker", "rm", "--force", "job"], check=False)
