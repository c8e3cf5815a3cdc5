# SPDX-License-Identifier: Apache-2.0
"""The map of a running machine with real cgroups, programs and processes, beside what the kernel lets them open."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.map.stage import GPUS, allowed
from tests.support import REPOSITORY
from tests.tiers import requires

pytestmark = requires("kernel")

COUNT = 1 << GPUS


def staged(cgroup: Path, *options: str) -> dict[str, Any]:
    argv = ["unshare", "--mount", sys.executable, "-m", "tests.map.stage", str(cgroup), *options]
    done = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_map_is_what_the_kernel_does(tmp_cgroup: Path) -> None:
    found = staged(tmp_cgroup, str(COUNT), "--open")
    by_pid = {w["processes"][0]["pid"]: w for w in found["map"]["workloads"] if w["kind"] == "cgroup"}
    seen = set()
    for number, (pid, opened) in enumerate(zip(found["pids"], found["opened"], strict=True)):
        workload = by_pid[pid]
        assert workload["name"].endswith(f"/job-{number}")
        for gpu, cell in enumerate(workload["cells"]):
            passes = opened[f"/dev/nvidia{gpu}"] == "ENXIO"  # every gate let it pass; no driver is there
            assert passes == (gpu in allowed(number))
            assert cell["may_open"] == ("allow" if passes else "deny")
            if not passes:
                assert cell["gate"]["where"] == workload["cgroup"]
            assert cell["selected"] == (gpu == 0)
            assert (
                cell["state"]
                == {
                    (True, True): "ready",
                    (True, False): "leak",
                    (False, True): "lost",
                    (False, False): "closed",
                }[passes, gpu == 0]
            )
            seen.add(cell["state"])
    assert seen == {"ready", "leak", "lost", "closed"}
