# SPDX-License-Identifier: Apache-2.0
"""A GPU lost to a real ``docker update --cpus``, which takes a host with every controller: found, and prevented.

A machine takes a minute, so one job answers every question of this file.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.lab.vm import ROOTFS, JobResult, run_job
from tests.tiers import requires

pytestmark = requires("vm")

SCRIPT = f"""#!/bin/bash
set -eu
docker import {ROOTFS} busybox >/dev/null
mkdir -p /etc/nvidia-container-runtime
printf '[nvidia-container-cli]\\n#no-cgroups = false\\n' >/etc/nvidia-container-runtime/config.toml
make() {{ rm -f "/dev/$1"; mknod -m 666 "/dev/$1" c "$2" "$3"; }}
make nvidia0 195 0
make nvidia1 195 1
make nvidiactl 195 255
make nvidia-uvm 511 0

pid() {{ docker inspect --format '{{{{.State.Pid}}}}' "$1"; }}
look() {{ python3 -m tests.lab_checks.examine "$(pid "$1")" >"$RESULTS/$2"; }}
try() {{ docker exec "$1" sh -c ': <>/dev/nvidia0' 2>&1 | sed 's/.*: //' >>"$RESULTS/opens"; }}

# What the legacy hook does: it binds the nodes read-only, and allows them in the program of the container's cgroup.
volumes="-v /dev/nvidia0:/dev/nvidia0 -v /dev/nvidiactl:/dev/nvidiactl -v /dev/nvidia-uvm:/dev/nvidia-uvm"
hooked=$(docker run --detach $volumes busybox sleep 600)
for node in nvidia0 nvidiactl nvidia-uvm; do
    nsenter --target "$(pid "$hooked")" --mount --pid mount -o remount,bind,ro,nosuid,noexec /dev/$node
done
python3 -c '
import sys, pathlib
from tests.lab.faults import allow_behind_systemd
allow_behind_systemd(pathlib.Path(sys.argv[1]), [(195, 0), (195, 255), (511, 0)])
' "/sys/fs/cgroup/system.slice/docker-$hooked.scope"
try "$hooked"
look "$hooked" before
docker update --cpus 1 "$hooked" >/dev/null
try "$hooked"
look "$hooked" after
python3 -c 'import json, sys; print(json.load(sys.stdin)[0]["fix"][0]["command"].replace("sudo ", ""))' \
    <"$RESULTS/after" | sh -eu
try "$hooked"
look "$hooked" mended

# The engine knows the nodes of this one.
known=$(docker run --detach --device /dev/nvidia0 --device /dev/nvidiactl --device /dev/nvidia-uvm busybox sleep 600)
docker update --cpus 1 "$known" >/dev/null
try "$known"
look "$known" known
"""


@pytest.fixture(scope="module")
def job() -> JobResult:
    """What the one job left."""
    done = run_job(SCRIPT)
    assert done.status == 0, done.output
    return done


def alarms(job: JobResult, name: str) -> list[tuple[str, str]]:
    findings: list[dict[str, Any]] = json.loads(job.files[name])
    return [(each["rule"], each["severity"]) for each in findings if each["severity"] != "info"]


def test_the_update_takes_the_gpu_and_the_fix_gives_it_back(job: JobResult) -> None:
    assert job.files["opens"].decode().splitlines() == [
        "No such device or address",
        "Operation not permitted",
        "No such device or address",
        "No such device or address",
    ]


def test_the_risk_is_told_before(job: JobResult) -> None:
    assert alarms(job, "before") == [("GPU-SYSTEMD-RELOAD-RISK", "warning")]


def test_the_loss_is_told_after(job: JobResult) -> None:
    assert alarms(job, "after") == [("GPU-CONTAINER-UPDATE-LOSS", "error")]


def test_nothing_is_told_of_what_was_mended(job: JobResult) -> None:
    assert alarms(job, "mended") == []


def test_a_container_whose_engine_knows_its_devices_keeps_them(job: JobResult) -> None:
    assert alarms(job, "known") == []
