# SPDX-License-Identifier: Apache-2.0
"""Trees that fork all the time move whole into a scope of a real systemd, and back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.lab.host import Lab
from tests.tiers import requires

pytestmark = requires("lab")

TIMES = 50

# Forks children that fork a grandchild and end: the grandchildren lose their parents at any moment.
BUSY = """
import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
while True:
    if os.fork() == 0:
        if os.fork() == 0:
            time.sleep(0.1)
            os._exit(0)
        os._exit(0)
    time.sleep(0.001)
"""

# Moves process argv[1] argv[2] times and back; prints who was left behind, the forks a second, the sizes.
MOVES = """
import json, sys, time
from pathlib import Path
from gpuiso.apply.calls import Calls
from gpuiso.apply.engine import carry_out
from gpuiso.apply.plan_pid import plan_pid
from gpuiso.apply.remove import remove
from gpuiso.apply.state import State
from gpuiso.host.live import LiveHost
from gpuiso.host.process_tree import read_cgroup
from gpuiso.policy.document import parse_policy
from gpuiso.policy.resolve import resolve

pid, times = int(sys.argv[1]), int(sys.argv[2])
host, calls, state = LiveHost(), Calls(), State(Path("/run/gpuiso-moves"))
policy = resolve(parse_policy("allow default-nodes"), host)
home = read_cgroup(pid)

def inside(cgroup):
    try:
        return Path("/sys/fs/cgroup" + cgroup, "cgroup.procs").read_text().split()
    except FileNotFoundError:
        return []

def forks():
    return next(int(line.split()[1]) for line in Path("/proc/stat").read_text().splitlines() if "processes" in line)

left, sizes, units, begun, first = [], [], set(), time.monotonic(), forks()
for number in range(times):
    plan = plan_pid(host, calls, pid, policy)
    carry_out(plan, state=state, calls=calls)
    left.append(len(inside(home)))
    sizes.append(len(inside(plan.target.v2.cgroup)))
    units.add(plan.target.unit)
    remove(plan.target, state=state, calls=calls)
    if str(pid) not in inside(home):
        left.append(-1)
    deadline = time.monotonic() + 10
    while inside(plan.target.v2.cgroup) and time.monotonic() < deadline:
        time.sleep(0.01)
rate = (forks() - first) / (time.monotonic() - begun)
print(json.dumps({"left": left, "sizes": sizes, "units": sorted(units), "rate": rate}))
"""


@pytest.mark.parametrize("release", ["lab12", "lab13"])
def test_fifty_moves_of_a_forking_tree(release: str, request: pytest.FixtureRequest) -> None:
    lab: Lab = request.getfixturevalue(release)
    lab.run(["systemd-run", "--unit=busy", "--collect", "--property=KillMode=control-group", "python3", "-c", BUSY])
    try:
        pid = lab.run(["systemctl", "show", "--property=MainPID", "--value", "busy.service"]).stdout.strip()
        said: dict[str, Any] = json.loads(lab.python(MOVES, pid, str(TIMES), timeout=300).stdout)
        assert said["left"] == [0] * TIMES, said
        assert min(said["sizes"]) > 1
        assert all(unit.endswith(".scope") for unit in said["units"])
    finally:
        lab.run(["systemctl", "stop", "busy.service"], check=False)
