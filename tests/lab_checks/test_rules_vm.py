# SPDX-License-Identifier: Apache-2.0
"""Rules and limits together where every controller is real, and rules that a ``docker update`` leaves in place.

A machine takes a minute, so one job answers every question of this file.
"""

from __future__ import annotations

import pytest

from tests.lab.vm import ROOTFS, JobResult, run_job
from tests.tiers import requires

pytestmark = requires("vm")

SCRIPT = f"""#!/bin/bash
set -eu
docker import {ROOTFS} busybox >/dev/null
make() {{ rm -f "/dev/$1"; mknod -m 666 "/dev/$1" c "$2" "$3"; }}
make nvidia0 195 0
make nvidia1 195 1
make nvidiactl 195 255
gpuiso() {{ python3 -m gpuiso "$@"; }}

cat >/tmp/limits.yaml <<'END'
gpuiso: 1
devices: [allow default-nodes, allow /dev/nvidia0 rw, allow /dev/nvidiactl rw]
memory.max: 64M
memory.high: 48M
pids.max: "50"
cpu.max: "50000 100000"
END
systemd-run --quiet --unit=ours --property=Delegate=yes --property=DelegateSubgroup=main sleep 600
job=/system.slice/ours.service/job
gpuiso rules apply --create --cgroup $job /tmp/limits.yaml --json >"$RESULTS/applied"
cd /sys/fs/cgroup$job
for file in memory.max memory.high pids.max cpu.max cgroup.controllers; do cat $file >>"$RESULTS/limits"; done
for node in nvidia0 nvidia1 nvidiactl; do
    sh -c "echo 0 >/sys/fs/cgroup$job/cgroup.procs; : <>/dev/$node" 2>&1 | sed 's/.*: //'
done >"$RESULTS/nodes"
cd /
gpuiso rules remove --cgroup $job >/dev/null
ls -d /sys/fs/cgroup$job 2>&1 | sed 's/.*: //' >"$RESULTS/removed"

grep -v max /tmp/limits.yaml | grep -v high >/tmp/container.yaml
id=$(docker run --detach --device /dev/nvidia0 --device /dev/nvidia1 --device /dev/nvidiactl busybox sleep 600)
try() {{
    for node in nvidia0 nvidia1 nvidiactl; do
        docker exec "$id" sh -c ": <>/dev/$node" 2>&1 | sed 's/.*: //'
    done >>"$RESULTS/container"
}}
try
gpuiso rules apply --container "$id" /tmp/container.yaml >/dev/null
try
docker update --cpus 1 --memory 64m --memory-swap 128m "$id" >/dev/null
try
systemctl daemon-reload
try
"""

ALLOWED, DENIED = "No such device or address", "Operation not permitted"


@pytest.fixture(scope="module")
def job() -> JobResult:
    done = run_job(SCRIPT.encode())
    assert done.status == 0, done.output
    return done


def test_limits_and_rules_in_one_policy(job: JobResult) -> None:
    *limits, controllers = job.files["limits"].decode().splitlines()
    assert limits == [str(64 << 20), str(48 << 20), "50", "50000 100000"]
    assert {"cpu", "memory", "pids"} <= set(controllers.split())
    assert job.files["nodes"].decode().splitlines() == [ALLOWED, DENIED, ALLOWED]
    assert job.files["removed"].decode() == "No such file or directory\n"


def test_rules_of_a_container_outlive_an_update(job: JobResult) -> None:
    before, *after = (job.files["container"].decode().splitlines()[i : i + 3] for i in range(0, 12, 3))
    assert before == [ALLOWED] * 3
    assert after == [[ALLOWED, DENIED, ALLOWED]] * 3
