# SPDX-License-Identifier: Apache-2.0
"""Drop-ins from policies, and from the commands that pages recommend for files which do not exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuiso.errors import BadInput, NotFound, NotSupported
from gpuiso.host.recorded import RecordedHost
from gpuiso.policy.document import parse_policy
from gpuiso.policy.resolve import ResolvedPolicy, resolve
from gpuiso.systemd.drop_in import make_drop_in
from gpuiso.systemd.recipes import find_recipes
from gpuiso.systemd.unit_files import full_name, unit_settings
from tests.support import REPOSITORY, make_fake_tree

UNIT = "trainer.service"
RECORD = '{"format": "gpuiso-host/1", "captured": "2026-01-01T00:00:00Z", "kernel": "6.12", "cgroup_mode": "unified"}'


def host_with(base: Path, files: dict[str, str]) -> RecordedHost:
    make_fake_tree(base, {"record.json": RECORD, **{f"root{path}": text for path, text in files.items()}})
    return RecordedHost(str(base))


def policy(text: str) -> ResolvedPolicy:
    return resolve(parse_policy(text), RecordedHost(str(REPOSITORY / "examples/hosts/h200-x4")))


def lines_for(base: Path, unit_text: str, wanted: ResolvedPolicy | None = None) -> list[str]:
    host = host_with(base, {f"/etc/systemd/system/{UNIT}": unit_text})
    return make_drop_in(UNIT, unit_settings(host, UNIT), wanted).text.splitlines()


def test_a_policy_as_settings(tmp_path: Path) -> None:
    wanted = policy(
        "gpuiso: 1\ndevices:\n- allow c 195:0 rw\n- allow c 195:255 rw\n"
        "memory.max: 1G\npids.max: max\ncpu.max: 50000 100000"
    )
    assert lines_for(tmp_path, "[Service]\nExecStart=/bin/true\n", wanted) == [
        "# Made by: gpuiso rules unit trainer.service",
        "[Service]",
        "DevicePolicy=strict",
        "DeviceAllow=",
        "DeviceAllow=/dev/char/195:0 rw",
        "DeviceAllow=/dev/char/195:255 rw",
        "MemoryMax=1073741824",
        "TasksMax=infinity",
        "CPUQuota=50%",
    ]


def test_recipes_become_settings_and_go(tmp_path: Path) -> None:
    unit = r"""
[Service]
ExecStartPre=/bin/sh -c 'echo "c 195:0 rwm" > /sys/fs/cgroup/trainer/devices.allow'
ExecStartPre=/usr/bin/install -d /var/lib/trainer
ExecStartPre=-/bin/bash -c "mkdir -p /sys/fs/cgroup/gpu; echo 'c 195:255 rw' >> /sys/fs/cgroup/gpu/devices.allow; \
    echo +devices > /sys/fs/cgroup/cgroup.subtree_control"
ExecStartPre=sh -c "echo '50000 100000' | tee /sys/fs/cgroup/gpu/gpu.max"
ExecStart=/usr/bin/trainer
"""
    assert lines_for(tmp_path, unit) == [
        "# Made by: gpuiso rules unit trainer.service",
        f"# /etc/systemd/system/{UNIT}:5: cgroup v2 has no devices controller to enable",
        f"# /etc/systemd/system/{UNIT}:7: no kernel has gpu.max; put it into a policy (gpu.max: 50000 100000)",
        "[Service]",
        "DevicePolicy=closed",
        "DeviceAllow=",
        "DeviceAllow=/dev/char/195:0 rwm",
        "DeviceAllow=/dev/char/195:255 rw",
        "ExecStartPre=",
        "ExecStartPre=/usr/bin/install -d /var/lib/trainer",
    ]


def test_a_command_that_does_more_stays(tmp_path: Path) -> None:
    unit = "[Service]\nExecStartPre=sh -c 'echo c 195:1 rw > /sys/fs/cgroup/x/devices.allow && nvidia-modprobe -u'\n"
    lines = lines_for(tmp_path, unit)
    assert f"# /etc/systemd/system/{UNIT}:2: ExecStartPre does more than that, so it stays: edit it by hand" in lines
    assert "DeviceAllow=/dev/char/195:1 rw" in lines
    assert [line for line in lines if line.startswith("ExecStartPre")] == []


def test_drop_ins_count_and_an_empty_value_forgets(tmp_path: Path) -> None:
    recipe = "[Service]\nExecStartPre=sh -c 'echo c 195:0 rw > /sys/fs/cgroup/x/devices.allow'\n"
    host = host_with(
        tmp_path,
        {
            f"/usr/lib/systemd/system/{UNIT}": recipe,
            f"/etc/systemd/system/{UNIT}.d/10-own.conf": "[Service]\nExecStartPre=\nExecStartPre=/bin/true\n",
        },
    )
    settings = unit_settings(host, UNIT)
    assert [setting.value for setting in settings][-2:] == ["", "/bin/true"]
    assert make_drop_in(UNIT, settings, None).text.splitlines()[-2:] == ["ExecStartPre=", "ExecStartPre=/bin/true"]


def test_what_cannot_be_said_is_refused(tmp_path: Path) -> None:
    host = host_with(tmp_path, {f"/etc/systemd/system/{UNIT}": "[Service]\nExecStart=/bin/true\n"})
    settings = unit_settings(host, UNIT)
    with pytest.raises(NotSupported, match="there is nothing to put into"):
        make_drop_in(UNIT, settings, None)
    with pytest.raises(NotSupported, match=r"no property for io\.max"):
        make_drop_in(UNIT, settings, policy('gpuiso: 1\nio.max: ["8:0 rbps=1000"]'))
    with pytest.raises(NotFound, match=r"no unit file nosuch\.service"):
        unit_settings(host, full_name("nosuch"))
    for name in ("../evil.service", "a b.service", ".service"):
        with pytest.raises(BadInput, match="is not the name of a unit"):
            full_name(name)
    with pytest.raises(BadInput, match="a scope has no unit file"):
        make_drop_in("x.scope", settings, policy("allow c 1:3 r"))


def test_a_wrong_rule_in_a_recipe_is_named(tmp_path: Path) -> None:
    unit = "[Service]\nExecStartPre=sh -c 'echo c 195:x rw > /sys/fs/cgroup/x/devices.allow'\n"
    host = host_with(tmp_path, {f"/etc/systemd/system/{UNIT}": unit})
    with pytest.raises(BadInput, match=r"trainer\.service:2: 'c 195:x rw' for devices\.allow"):
        find_recipes(unit_settings(host, UNIT))
