# SPDX-License-Identifier: Apache-2.0
"""``docker update`` does not change what the hook holds; it takes a host with every controller.

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
mkdir -p /etc/gpuiso/policy.d
cat >/etc/gpuiso/policy.d/first.yaml <<'END'
gpuiso: 1
devices: [allow default-nodes, "allow c *:* m", allow /dev/nvidia0, allow /dev/nvidiactl]
END
printf 'allow a\\ndeny c 195:1 rw\\n' >/etc/gpuiso/policy.d/hole.rules
python3 -m gpuiso hook install
python3 -m gpuiso hook refresh

try() {{
    for node in nvidia0 nvidia1 nvidiactl; do
        docker exec "$1" sh -c ": <>/dev/$node" 2>&1 | sed 's/.*: //'
    done >>"$RESULTS/$2"
}}
for policy in first hole; do
    nodes="--device /dev/nvidia0 --device /dev/nvidia1 --device /dev/nvidiactl"
    id=$(docker run --detach $nodes --device gpuiso.dev/policy=$policy busybox sleep 600)
    try $id $policy
    docker update --cpus 1 --memory 64m --memory-swap 128m $id >/dev/null
    try $id $policy
    docker update --cpuset-cpus 0 $id >/dev/null
    systemctl daemon-reload
    docker pause $id >/dev/null
    docker unpause $id >/dev/null
    try $id $policy
    cat /sys/fs/cgroup/system.slice/docker-$id.scope/cpu.max >>"$RESULTS/limits"
done
"""

ALLOWED, DENIED = "No such device or address", "Operation not permitted"


@pytest.fixture(scope="module")
def job() -> JobResult:
    done = run_job(SCRIPT.encode())
    assert done.status == 0, done.output
    return done


@pytest.mark.parametrize("policy", ["first", "hole"])
def test_updates_change_limits_and_no_rules(job: JobResult, policy: str) -> None:
    assert job.files["limits"].decode().splitlines() == ["100000 100000"] * 2
    assert job.files[policy].decode().splitlines() == [ALLOWED, DENIED, ALLOWED] * 3
