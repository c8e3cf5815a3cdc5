# SPDX-License-Identifier: Apache-2.0
"""The virtual machine is a container host with every controller, and its jobs report back."""

from __future__ import annotations

from tests.lab.vm import ROOTFS, run_job
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
docker run --detach --name limited --memory 64m busybox sleep 600 >/dev/null
docker update --memory 32m --memory-swap 64m limited >/dev/null
cat "/sys/fs/cgroup/system.slice/docker-$(docker inspect -f '{{{{.Id}}}}' limited).scope/memory.max" >"$RESULTS/max"
python3 -c 'import gpuiso, typer; print(gpuiso.__file__)'
cat /given >&2
exit 3
"""


def test_a_job_runs_on_a_pure_v2_host_with_all_controllers() -> None:
    done = run_job(SCRIPT, files={"/given": b"given\n"})
    assert (done.status, done.output) == (3, "/opt/gpuiso/gpuiso/__init__.py\ngiven\n")
    assert {"cpuset", "cpu", "io", "memory", "hugetlb", "pids", "rdma", "misc"} <= {
        name.decode() for name in done.files["controllers"].split()
    }
    assert "bpf" in done.files["lsm"].decode().strip().split(",")
    assert done.files["type"] == b"cgroup2fs\n"
    assert done.files["max"] == b"33554432\n"
