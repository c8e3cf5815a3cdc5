# SPDX-License-Identifier: Apache-2.0
"""Grants of policy.d under real engines: which containers start, and what those may open."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpuiso.cdi.emit import to_yaml
from gpuiso.cdi.generate import Options, generate
from tests.lab.host import Lab
from tests.lab.images import docker_image, podman_image
from tests.lab_checks.examine import UUIDS
from tests.lab_checks.test_hook import FIRST_ONLY, HOOKS_D, NODES, fake_host, opens, started, unfurnish
from tests.tiers import requires

pytestmark = requires("lab")
__all__ = ["started"]

GPUISO = ["python3", "-m", "tests.lab_checks.with_gpus"]
GRANTS = b"""gpuiso: 1
grants:
- containers: [team=research]
  gpus: [0]
  gpu.max: 50000 100000
- slices: [batch.slice]
  gpus: [1]
"""
NONE = ["EPERM"] * 3


def furnish(lab: Lab) -> None:
    lab.put("/etc/gpuiso/policy.d/grants.yaml", GRANTS)
    lab.run(["gpuiso", "hook", "install", "--always"])
    lab.run([*GPUISO, "hook", "refresh"])


@pytest.fixture(params=["lab13", "lab12"])
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    lab: Lab = request.getfixturevalue(request.param)
    furnish(lab)
    yield lab
    unfurnish(lab)


def test_podman(lab: Lab, started: list[tuple[Lab, str, str]]) -> None:
    image = podman_image(lab)

    def run(name: str, *options: str, check: bool = True) -> bool:
        started.append((lab, "podman", name))
        command = ["podman", "run", "-d", "--network=none", f"--hooks-dir={HOOKS_D}", "--name", name, *options]
        return lab.run([*command, image, "sleep", "infinity"], check=check).returncode == 0

    first = [f"--device={node}" for node in (NODES[0], NODES[2])]
    run("grants-given", "--annotation=team=research", *first)
    assert opens(lab, "podman", "grants-given", NODES[0], NODES[2]) == ["ENXIO", "ENXIO"]
    assert '"50000 100000"' in lab.sh("cat /run/gpuiso/govern/*.json")
    lab.run(["systemctl", "daemon-reload"])
    assert opens(lab, "podman", "grants-given", NODES[0], NODES[2]) == ["ENXIO", "ENXIO"]

    assert not run("grants-other", "--annotation=team=other", *first, check=False)
    assert not run("grants-more", "--annotation=team=research", f"--device={NODES[1]}", *first, check=False)
    journal = lab.wait_for(["sh", "-c", "journalctl -q -o cat -t gpuiso-hook | grep 'only the GPUs'"]).stdout
    assert f"it may not have {UUIDS[0]}, {UUIDS[1]}: /etc/gpuiso/policy.d/grants.yaml:3: only the GPUs {UUIDS[0]}" in (
        journal
    )
    assert "no grant in policy.d is for this container" in lab.sh("journalctl -q -o cat -t gpuiso-hook")

    # Whoever has everything keeps what is granted: nothing, and the first GPU.
    run("grants-all", "--privileged")
    assert opens(lab, "podman", "grants-all") == NONE
    run("grants-all-first", "--privileged", "--annotation=team=research")
    assert opens(lab, "podman", "grants-all-first") == FIRST_ONLY
    assert lab.run(["podman", "exec", "grants-all", "sh", "-c", ": </dev/null"]).returncode == 0

    lab.run(["podman", "rm", "-f", "-t", "0", "grants-given", "grants-all-first"])
    assert lab.sh("ls /run/gpuiso/govern") == ""


def test_docker_with_cdi(lab13: Lab, started: list[tuple[Lab, str, str]]) -> None:
    lab = lab13
    furnish(lab)
    try:
        spec = generate(fake_host(lab), Options(hooks="none", grants=True)).spec
        for mount in spec.container_edits.mounts:
            lab.put(mount.host_path, b"of the driver", mode=0o755)
        lab.put("/etc/cdi/nvidia.yaml", to_yaml(spec).encode())
        image = docker_image(lab)

        def run(name: str, *options: str) -> str:
            started.append((lab, "docker", name))
            command = [
                "docker",
                "run",
                "-d",
                "--network=none",
                "--name",
                name,
                *options,
                image,
                "/bin/sleep",
                "infinity",
            ]
            done = lab.run(command, check=False)
            return "" if done.returncode == 0 else done.stderr

        assert run("grants-one", "--annotation=team=research", "--device=nvidia.com/gpu=0") == ""
        assert opens(lab, "docker", "grants-one", NODES[0]) == ["ENXIO"]
        assert run("grants-slice", "--cgroup-parent=batch.slice", "--device=nvidia.com/gpu=1") == ""
        assert opens(lab, "docker", "grants-slice", NODES[1]) == ["ENXIO"]
        refused = run("grants-two", "--annotation=team=research", "--device=nvidia.com/gpu=1")
        assert "grants.yaml:3: only the GPUs" in refused
        assert "no grant in policy.d is for this container" in run("grants-nobody", "--device=nvidia.com/gpu=all")
        # Its runtime starts no hook of ours for one without a device of ours.
        assert run("grants-nothing") == ""
    finally:
        unfurnish(lab)
