# SPDX-License-Identifier: Apache-2.0
"""The virtual machine is a container host with every controller, and its jobs report back.

A machine takes a minute, so one job answers every question of this file.
"""

from __future__ import annotations

import pytest

from tests.lab.vm import ROOTFS, JobResult, run_job
from tests.tiers import requires

pytestmark = requires("vm")

SCRIPT = f"""#!/bin/bash
set -eu
cat /sys/fs/cgroup/cgroup.controllers >"$RESULTS/controllers"
cat /sys/kernel/security/lsm >"$RESULTS/lsm"
stat -f -c %T /sys/fs/cgroup >"$RESULTS/type"
modprobe cuse
test -c /dev/cuse
docker import {ROOTFS} busybox >/dev/null
id=$(docker run --detach --memory 64m busybox sleep 600)
cgroup=/sys/fs/cgroup/system.slice/docker-$id.scope

try() {{ docker exec "$id" sh -c ': <>/dev/nvidia0' 2>&1 | sed 's/.*: //' >>"$RESULTS/opens"; }}
docker exec "$id" mknod /dev/nvidia0 c 195 0
try
python3 -c '
import sys, pathlib
from tests.lab.faults import allow_behind_systemd
allow_behind_systemd(pathlib.Path(sys.argv[1]), [(195, 0)])' "$cgroup"
try
docker update --cpus 1 --memory 32m --memory-swap 64m "$id" >/dev/null
try
cat "$cgroup/memory.max" "$cgroup/cpu.max" >"$RESULTS/limits"

python3 -c 'import gpuiso, typer; print(gpuiso.__file__)'
cat /given >&2
exit 3
"""


@pytest.fixture(scope="module")
def job() -> JobResult:
    """What the one job left."""
    return run_job(SCRIPT, files={"/given": b"given\n"})


def test_the_job_reports_back(job: JobResult) -> None:
    assert (job.status, job.output) == (3, "/opt/gpuiso/gpuiso/__init__.py\ngiven\n")


def test_the_host_is_pure_v2_with_all_controllers(job: JobResult) -> None:
    assert job.files["type"] == b"cgroup2fs\n"
    names = {name.decode() for name in job.files["controllers"].split()}
    assert {"cpuset", "cpu", "io", "memory", "hugetlb", "pids", "rdma", "misc"} <= names
    assert "bpf" in job.files["lsm"].decode().strip().split(",")


def test_docker_update_takes_a_gpu_that_was_added_behind_systemd(job: JobResult) -> None:
    assert job.files["limits"] == b"33554432\n100000 100000\n"
    assert job.files["opens"].decode().splitlines() == [
        "Operation not permitted",
        "No such device or address",
        "Operation not permitted",
    ]
