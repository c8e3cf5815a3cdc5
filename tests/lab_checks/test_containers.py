# SPDX-License-Identifier: Apache-2.0
"""Docker containers that lose their GPUs, never get them, or get them all."""

from __future__ import annotations

import pytest

from tests.lab.host import Lab
from tests.lab_checks.lab import UUID, docker_container, found, hook, mend, only, opened, put_nodes, rules
from tests.tiers import requires

pytestmark = requires("lab")

CONFIG = "/etc/nvidia-container-runtime/config.toml"


def test_lost_to_daemon_reload(lab12: Lab) -> None:
    with docker_container(lab12) as (container, pid):
        hook(lab12, container)
        assert opened(lab12, container) == {"ENXIO"}
        assert rules(lab12, pid) == {"GPU-SYSTEMD-RELOAD-RISK": "warning"}

        lab12.run(["systemctl", "daemon-reload"])
        assert opened(lab12, container) == {"EPERM"}
        finding = only(lab12, "GPU-SYSTEMD-RELOAD-LOSS", pid)
        assert finding["target"]["container"] == container

        mend(lab12, finding)
        assert opened(lab12, container) == {"ENXIO"}
        lab12.run(["systemctl", "daemon-reload"])
        assert opened(lab12, container) == {"ENXIO"}
        assert found(lab12, pid) == []


def test_lost_to_a_property_of_the_scope(lab13: Lab) -> None:
    with docker_container(lab13) as (container, pid):
        hook(lab13, container)
        lab13.run(["systemctl", "set-property", "--runtime", f"docker-{container}.scope", "TasksMax=5000"])
        assert opened(lab13, container) == {"EPERM"}
        mend(lab13, only(lab13, "GPU-SYSTEMD-RELOAD-LOSS", pid))
        assert opened(lab13, container) == {"ENXIO"}
        assert found(lab13, pid) == []


def test_the_risk_is_taken_away_before_it_bites(lab12: Lab) -> None:
    with docker_container(lab12) as (container, pid):
        hook(lab12, container)
        mend(lab12, only(lab12, "GPU-SYSTEMD-RELOAD-RISK", pid))
        lab12.run(["systemctl", "daemon-reload"])
        assert opened(lab12, container) == {"ENXIO"}
        assert found(lab12, pid) == []


def test_a_container_with_devices_of_its_engine_is_healthy(lab13: Lab) -> None:
    devices = [f"--device={path}" for path in ("/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm")]
    with docker_container(lab13, *devices) as (_, pid):
        assert found(lab13, pid) == []


def test_links_that_this_runc_needs(lab12: Lab) -> None:
    """runc 1.1.5 of Debian 12, and no /dev/char: the fix makes the links, and the next container keeps its GPU."""
    nodes = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
    devices = [f"--device={path}" for path in nodes]
    try:
        with docker_container(lab12, *devices) as (container, pid):
            assert rules(lab12, pid) == {"GPU-DEVCHAR-SYMLINK-MISSING": "warning"}
            lab12.run(["systemctl", "daemon-reload"])
            assert opened(lab12, container) == {"EPERM"}
            finding = only(lab12, "GPU-DEVCHAR-SYMLINK-MISSING", pid)
            assert finding["severity"] == "error"
            mend(lab12, finding, 0)
            assert opened(lab12, container) == {"ENXIO"}
            mend(lab12, finding, 1)
        with docker_container(lab12, *devices) as (container, pid):
            assert found(lab12, pid) == []
            lab12.run(["systemctl", "daemon-reload"])
            assert opened(lab12, container) == {"ENXIO"}
            assert found(lab12, pid) == []
    finally:
        lab12.sh("rm -rf /dev/char")


@pytest.mark.parametrize("release", ["lab12", "lab13"])
def test_no_cgroups_under_an_engine_of_root(release: str, request: pytest.FixtureRequest) -> None:
    """The hook is played by us, and does what the configuration says."""
    lab: Lab = request.getfixturevalue(release)
    lab.put(CONFIG, b"[nvidia-container-cli]\nload-kmods = true\nno-cgroups = true\n")
    try:
        with docker_container(lab) as (container, pid):
            hook(lab, container, no_cgroups=_no_cgroups(lab))
            assert opened(lab, container) == {"EPERM"}
            mend(lab, only(lab, "GPU-NVCT-NOCGROUPS", pid))
        with docker_container(lab) as (container, pid):
            hook(lab, container, no_cgroups=_no_cgroups(lab))
            assert opened(lab, container) == {"ENXIO"}
            assert "GPU-NVCT-NOCGROUPS" not in rules(lab, pid)
    finally:
        lab.sh(f"rm -rf {CONFIG}")


def _no_cgroups(lab: Lab) -> bool:
    return b"\nno-cgroups = true\n" in lab.get(CONFIG)


def test_nodes_that_nobody_allowed(lab13: Lab) -> None:
    """Without a sign of why, the general finding stands."""
    with docker_container(lab13) as (container, pid):
        put_nodes(lab13, container)
        only(lab13, "GPU-CGV2-EBPF-DENY", pid)


def test_a_privileged_container(lab13: Lab) -> None:
    with docker_container(lab13, "--privileged", "-e", f"NVIDIA_VISIBLE_DEVICES={UUID}") as (_, pid):
        finding = only(lab13, "GPU-PRIV-EXPOSE", pid)
        assert finding["severity"] == "warning"
        assert any(each["says"] == "HostConfig.Privileged is true" for each in finding["evidence"])


def test_toolkit_not_installed(lab13: Lab) -> None:
    lab13.run(["docker", "create", "--name", "no-toolkit", "--gpus", "all", "busybox"])
    try:
        assert lab13.run(["docker", "start", "no-toolkit"], check=False).returncode != 0
        finding = only(lab13, "GPU-NVCT-NO-RUNTIME")
        assert "no-toolkit" in finding["cause"]
    finally:
        lab13.run(["docker", "rm", "no-toolkit"])


@pytest.mark.parametrize(("option", "severity"), [("device=0,1", "error"), ("0", "warning")])
def test_gpus_option(lab13: Lab, option: str, severity: str) -> None:
    lab13.run(["docker", "create", "--name", "gpus", "--gpus", option, "busybox"])
    try:
        assert rules(lab13) == {"GPU-DOCKER-GPUS-SYNTAX": severity}
        quoted = "'\"device=0,1\"'"
        lab13.sh(f"docker rm gpus; docker create --name gpus --gpus {quoted} busybox")
        assert found(lab13) == []
    finally:
        lab13.run(["docker", "rm", "gpus"])
