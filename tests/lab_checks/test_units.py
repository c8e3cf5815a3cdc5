# SPDX-License-Identifier: Apache-2.0
"""Services whose settings keep them from the GPUs, and advice for cgroup v1 on a host of v2."""

from __future__ import annotations

from tests.lab.host import Lab
from tests.lab_checks.lab import found, main_pid, mend, only, open_as, service
from tests.tiers import requires

pytestmark = requires("lab")

GPU_NODES = ("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm")


def answers(lab: Lab, pid: int) -> set[str]:
    return {open_as(lab, pid, path) for path in GPU_NODES}


def test_private_devices(lab13: Lab) -> None:
    with service(lab13, "private.service", ["PrivateDevices=yes"]) as pid:
        assert answers(lab13, pid) == {"ENOENT"}
        finding = only(lab13, "GPU-UNIT-PRIVATEDEVICES", pid)
        assert finding["target"]["unit"] == "private.service"
        mend(lab13, finding)
        pid = main_pid(lab13, "private.service")
        assert answers(lab13, pid) == {"ENXIO"}
        assert open_as(lab13, pid, "/dev/nvidia-uvm-tools") == "EPERM"
        assert found(lab13, pid) == []


def test_private_devices_of_debian_12(lab12: Lab) -> None:
    with service(lab12, "private.service", ["PrivateDevices=yes"]) as pid:
        mend(lab12, only(lab12, "GPU-UNIT-PRIVATEDEVICES", pid))
        assert answers(lab12, main_pid(lab12, "private.service")) == {"ENXIO"}


def test_a_gap_in_the_list(lab13: Lab) -> None:
    settings = [f"DeviceAllow={path} rw" for path in GPU_NODES if path != "/dev/nvidiactl"]
    with service(lab13, "gap.service", settings) as pid:
        assert open_as(lab13, pid, "/dev/nvidiactl") == "EPERM"
        finding = only(lab13, "GPU-UNIT-DEVICEALLOW-GAP", pid)
        assert "/dev/nvidiactl is not among them" in finding["cause"]
        mend(lab13, finding)
        assert answers(lab13, pid) == {"ENXIO"}
        assert found(lab13, pid) == []


def test_a_group_that_is_unknown(lab13: Lab) -> None:
    """No driver of the lab is called nvidia-frontend: systemd drops the group, and nothing is allowed."""
    settings = ["DevicePolicy=closed", "DeviceAllow=char-nvidia-frontend rw", "DeviceAllow=/dev/nvidia-uvm rw"]
    with service(lab13, "group.service", settings) as pid:
        assert open_as(lab13, pid, "/dev/nvidia0") == "EPERM"
        finding = only(lab13, "GPU-UNIT-DEVICEALLOW-GAP", pid)
        assert finding["title"] == "A device group in DeviceAllow= is unknown to the kernel"
        mend(lab13, finding)
        assert answers(lab13, pid) == {"ENXIO"}


def test_a_group_that_was_unknown_at_the_start(lab13: Lab) -> None:
    """The kernel of the lab has no nvidia-uvm; the doctor is told that the driver was loaded since."""
    settings = [f"DeviceAllow={path} rw" for path in GPU_NODES if path != "/dev/nvidia-uvm"]
    with service(lab13, "late.service", [*settings, "DeviceAllow=char-nvidia-uvm rw"]) as pid:
        assert open_as(lab13, pid, "/dev/nvidia-uvm") == "EPERM"
        finding = only(lab13, "GPU-UNIT-DEVICEALLOW-GAP", pid)
        assert finding["title"] == "A device group in DeviceAllow= was unknown when the unit started"
        mend(lab13, finding)
        assert answers(lab13, pid) == {"ENXIO"}


def test_a_service_without_limits_is_healthy(lab13: Lab) -> None:
    with service(lab13, "plain.service", []) as pid:
        assert found(lab13, pid) == []


def test_advice_that_never_worked(lab13: Lab) -> None:
    """The unit writes to files of cgroup v1: it fails, the slice stays open; the command of the fix closes it."""
    writes = "/bin/sh -c 'echo c 195:1 rwm > /sys/fs/cgroup/limited.slice/devices.deny'"
    with service(lab13, "limited.service", ["Slice=limited.slice", f"ExecStartPre=-{writes}"]) as pid:
        assert open_as(lab13, pid, "/dev/nvidia1") == "ENXIO"
        finding = only(lab13, "GPU-CGV2-FALSE-ADVICE")
        assert finding["target"]["unit"] == "limited.service"
        try:
            mend(lab13, finding)
            assert open_as(lab13, pid, "/dev/nvidia1") == "EPERM"
            assert open_as(lab13, pid, "/dev/nvidia0") == "ENXIO"
        finally:
            lab13.sh("rm -rf /etc/systemd/system.control/limited.slice.d; systemctl daemon-reload")
