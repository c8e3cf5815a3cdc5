# SPDX-License-Identifier: Apache-2.0
"""What explain reads, beside what the kernel answers: every process of a lab and every GPU node."""

from __future__ import annotations

import json

import pytest

from tests.lab.faults import lose_gpu_by_set_property
from tests.lab.host import Lab
from tests.lab_checks.lab import docker_container
from tests.tiers import requires

pytestmark = requires("lab")

NODES = ("/dev/null", "/dev/fuse", "/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/tty")

_COMPARE = """
import json, sys
from dataclasses import replace
from gpuiso.doctor.gates import explain
from gpuiso.errors import GpuisoError
from gpuiso.host.live import LiveHost

host, count, unknown, contradictions = LiveHost(), 0, {}, []
for pid in host.pids():
    for node in sys.argv[1:]:
        try:
            answer = explain(host, pid, node, probe=True)
        except GpuisoError as error:
            unknown[type(error).__name__] = unknown.get(type(error).__name__, 0) + 1
            continue
        # On a hybrid machine the lab's processes are in v1 cgroups too, which are not mounted in the lab.
        answer = replace(answer, passive=tuple(gate for gate in answer.passive if gate.gate != "cgroup-v1"))
        passive = replace(answer, probed=None)
        if answer.disagreement is not None:
            contradictions.append([pid, host.text(f"/proc/{pid}/comm"), node, answer.disagreement])
        elif passive.verdict == "unknown" or answer.probed.verdict == "unknown":
            key = passive.unknown_because or answer.probed.says
            unknown[key] = unknown.get(key, 0) + 1
        else:
            count += 1
print(json.dumps({"count": count, "unknown": unknown, "contradictions": contradictions}))
"""


@pytest.mark.parametrize("release", ["lab12", "lab13"])
def test_what_is_read_is_what_the_kernel_answers(release: str, request: pytest.FixtureRequest) -> None:
    lab: Lab = request.getfixturevalue(release)
    lose_gpu_by_set_property(lab, "explained")
    unit = "explained-service"
    properties = ["DeviceAllow=/dev/nvidia0 rw", "DevicePolicy=closed", "User=nobody"]
    lab.run(["systemd-run", f"--unit={unit}", *(f"--property={p}" for p in properties), "sleep", "600"])
    private = f"{unit}-private"
    lab.run(["systemd-run", f"--unit={private}", "--property=PrivateDevices=yes", "sleep", "600"])
    try:
        with docker_container(lab, "--device=/dev/nvidia1"), docker_container(lab, "--user=1000:1000"):
            found = json.loads(lab.python(_COMPARE, *NODES, timeout=300).stdout)
    finally:
        lab.run(["systemctl", "stop", unit, private], check=False)
        lab.run(["docker", "rm", "--force", "explained"], check=False)
    assert found["contradictions"] == []
    assert found["count"] > 100, found
    # Doubt is allowed (a process that ended, a namespace that may not be entered), but must stay the exception.
    assert sum(found["unknown"].values()) < found["count"] / 4, found["unknown"]
