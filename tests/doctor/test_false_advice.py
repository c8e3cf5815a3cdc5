# SPDX-License-Identifier: Apache-2.0
"""Lines that limit nothing on cgroup v2, and lines that only look like them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doctor.findings import found, severities
from tests.records import RecordMaker

RULE = "GPU-CGV2-FALSE-ADVICE"


def unit(maker: RecordMaker, line: str) -> None:
    maker.files["/etc/systemd/system/limit.service"] = f"[Service]\n{line}\n"


@pytest.mark.parametrize(
    "line",
    [
        "ExecStartPre=/bin/sh -c 'echo c 195:* rwm > /sys/fs/cgroup/a.slice/devices.deny'",
        "ExecStart=/bin/sh -c 'echo a | tee -a \"/sys/fs/cgroup/a/devices.allow\"'",
        "ExecStart=/bin/sh -c 'echo +devices > /sys/fs/cgroup/cgroup.subtree_control'",
        "ExecStart=/bin/sh -c 'echo \"+cpu +gpu\" >> /sys/fs/cgroup/cgroup.subtree_control'",
        "ExecStart=/bin/sh -c \\\n  'echo 50000 100000 > /sys/fs/cgroup/a.slice/gpu.max'",
        "ExecStart=/usr/bin/cgset -r devices.deny='c 195:0 rwm' jobs",
    ],
)
def test_what_never_worked(tmp_path: Path, line: str) -> None:
    maker = RecordMaker(tmp_path)
    unit(maker, line)
    [finding] = found(maker, RULE)
    assert finding.target.unit == "limit.service"
    maker.header["cgroup_mode"] = "hybrid"
    assert found(maker, RULE) == []


@pytest.mark.parametrize(
    "line",
    [
        "# ExecStartPre=/bin/sh -c 'echo c 195:* rwm > /sys/fs/cgroup/devices.deny'",
        "ExecStart=/bin/sh -c 'echo +cpu > /sys/fs/cgroup/cgroup.subtree_control'",
        "ExecStart=/bin/cat /sys/fs/cgroup/devices.list",
        "ExecStart=/bin/sh -c '[ -w /sys/fs/cgroup/devices.deny ] && echo a > /sys/fs/cgroup/devices.deny'",
        "DeviceAllow=/dev/nvidia0 rw",
        "ExecStart=/opt/read /sys/fs/cgroup/a/gpu.max",
    ],
)
def test_what_is_no_fault(tmp_path: Path, line: str) -> None:
    maker = RecordMaker(tmp_path)
    unit(maker, line)
    assert severities(maker) == []


def test_a_script_of_a_unit_and_one_of_cron(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    unit(maker, "ExecStart=/usr/local/sbin/limit --gpu 1")
    maker.files["/usr/local/sbin/limit"] = "#!/bin/sh\necho 'c 195:1 rw' > $CG/devices.deny\n"
    maker.files["/etc/cron.d/limit"] = "@reboot root echo c 195:1 rw > /sys/fs/cgroup/b.slice/devices.deny\n"
    findings = found(maker, RULE)
    assert [finding.target.unit for finding in findings] == ["limit.service", None]
    assert "b.slice" in str(findings[1].fix[0].command)


def test_a_program_that_is_no_script_is_not_read(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    unit(maker, "ExecStart=/usr/local/bin/agent")
    maker.files["/usr/local/bin/agent"] = "\x7fELF echo a > /sys/fs/cgroup/devices.deny"
    assert severities(maker) == []
