# SPDX-License-Identifier: Apache-2.0
"""The examples for systemd and Docker, on a real host with both."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import yaml

from tests.lab.host import Lab
from tests.lab.images import docker_image, podman_image
from tests.lab_checks.examine import UUIDS
from tests.support import REPOSITORY
from tests.tiers import requires

pytestmark = requires("lab")

EXAMPLES = REPOSITORY / "examples"
WITH_GPUS = """#!/bin/sh
cd /opt/gpuiso
PYTHONPATH=/opt/gpuiso:/opt/site PYTHONDONTWRITEBYTECODE=1 exec python3 -m tests.lab_checks.with_gpus "$@"
"""


@pytest.fixture
def lab(lab13: Lab) -> Iterator[Lab]:
    """A lab whose gpuiso finds two GPUs."""
    lab13.put("/usr/local/sbin/gpuiso", WITH_GPUS.encode(), 0o755)
    yield lab13
    lab13.sh("rm -f /usr/local/sbin/gpuiso")


def test_units_are_right(lab: Lab) -> None:
    for path in sorted((EXAMPLES / "systemd").glob("gpuiso-[gj]*.service")):
        lab.put(f"/etc/systemd/system/{path.name}", path.read_bytes())
        name = path.name.replace("@.", "@a.")
        done = lab.run(["systemd-analyze", "verify", "--man=no", name], check=False)
        lab.sh('rm "$1"', f"/etc/systemd/system/{path.name}")
        assert (done.returncode, done.stderr) == (0, "")


def test_two_jobs_on_a_gpu_each(lab: Lab) -> None:
    unit = "gpuiso-job@.service"
    lab.put(f"/etc/systemd/system/{unit}", (EXAMPLES / "systemd" / unit).read_bytes())
    script = '#!/bin/sh\necho "$CUDA_VISIBLE_DEVICES" >/run/$(basename "$0")-gpu\nexec sleep 1000\n'
    for name in ("a", "b"):
        lab.put(f"/etc/gpuiso/jobs/{name}.sh", script.encode(), 0o755)
    try:
        lab.run(["systemctl", "daemon-reload"])
        lab.run(["systemctl", "start", "gpuiso-job@a", "gpuiso-job@b"])
        for name in ("a", "b"):
            lab.wait_for(["test", "-s", f"/run/{name}.sh-gpu"])
        got = [lab.get(f"/run/{name}.sh-gpu").decode().strip() for name in ("a", "b")]
        assert sorted(got) == sorted(UUIDS)
        shown = lab.run(["gpuiso", "leases"]).stdout
        assert "gpuiso-a" in shown
        assert "free" not in shown
        lab.run(["systemctl", "stop", "gpuiso-job@a"])
        assert "free" in lab.run(["gpuiso", "leases"]).stdout
    finally:
        lab.sh("systemctl stop 'gpuiso-job@*'; rm -rf /etc/systemd/system/gpuiso-job@.service /etc/gpuiso/jobs")
        lab.sh("systemctl daemon-reload; rm -f /run/?.sh-gpu")


@pytest.fixture
def specs(lab: Lab) -> Iterator[Lab]:
    """A CDI spec that names the two GPUs by UUID, as `gpuiso cdi generate` does."""
    devices = [
        {"name": uuid, "containerEdits": {"deviceNodes": [{"path": f"/dev/nvidia{n}"}, {"path": "/dev/nvidiactl"}]}}
        for n, uuid in enumerate(UUIDS)
    ]
    spec = {"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": devices}
    lab.put("/etc/cdi/nvidia.yaml", yaml.safe_dump(spec).encode())
    yield lab
    lab.sh("rm -f /etc/cdi/nvidia.yaml")


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_a_container_on_leased_gpus(specs: Lab, engine: str) -> None:
    image = docker_image(specs) if engine == "docker" else podman_image(specs)
    script = "/opt/gpuiso/examples/docker/leased-container"
    listed = ["--network=none", image, "sh", "-c", "echo /dev/nvidia?"]
    done = specs.run([script, "nvidia:1", *listed], env={"ENGINE": engine}, cgroup="/init.scope", check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["/dev/nvidia1"]
    both = specs.run([script, "2", *listed], env={"ENGINE": engine}, cgroup="/init.scope")
    assert both.stdout.split() == ["/dev/nvidia0", "/dev/nvidia1"]
