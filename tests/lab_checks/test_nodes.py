# SPDX-License-Identifier: Apache-2.0
"""Nodes of the host that were closed or whose numbers changed: mode, mount, CDI specification; and rootless engines."""

from __future__ import annotations

from tests.lab.host import Lab
from tests.lab.images import docker_image, podman_image
from tests.lab.rootless import run_rootless
from tests.lab_checks.lab import found, mend, numbers, only, open_as, service
from tests.tiers import requires

pytestmark = requires("lab")

SPEC = """cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
- name: "0"
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
    - path: /dev/nvidiactl
    - path: /dev/nvidia-uvm
      major: {major}
"""
CONFIG = "/etc/nvidia-container-runtime/config.toml"
HOOK = "/usr/local/bin/nvidia-container-runtime-hook"
HOOKS = "/usr/share/containers/oci/hooks.d/oci-nvidia-hook.json"
LOG = "/home/user/hook.log"
#: What the legacy hook does that matters here: it asks for the programs of the container's cgroup, unless told not to.
LEGACY_HOOK = f"""#!/usr/bin/python3
import json, os, sys
sys.path[:0] = ["/opt/gpuiso"]
from gpuiso.kernel import bpf
if "no-cgroups = true" not in open({CONFIG!r}).read().splitlines():
    cgroup = open(f"/proc/{{json.load(sys.stdin)['pid']}}/cgroup").read().strip().partition("::")[2]
    try:
        bpf.prog_query(os.open("/sys/fs/cgroup" + cgroup, os.O_RDONLY))
    except PermissionError as error:
        open({LOG!r}, "w").write(str(error))  # crun does not pass on what a hook prints
        sys.exit(1)
"""


def test_a_node_with_mode_0600(lab13: Lab) -> None:
    with service(lab13, "user.service", ["User=nobody"]) as pid:
        assert found(lab13, pid) == []
        lab13.sh("chmod 0600 /dev/nvidia0 /dev/nvidiactl /dev/nvidia1 /dev/nvidia-uvm")
        try:
            assert open_as(lab13, pid, "/dev/nvidia0", user="65534") == "EACCES"
            mend(lab13, only(lab13, "GPU-DEV-MODE", pid))
            assert open_as(lab13, pid, "/dev/nvidia0", user="65534") == "ENXIO"
            assert found(lab13, pid) == []
        finally:
            lab13.sh("chmod 0666 /dev/nvidia*")


def test_dev_mounted_with_nodev(lab13: Lab) -> None:
    """A service with a /dev of its own, on which a helper forgot the option dev."""
    with service(lab13, "nodev.service", ["PrivateMounts=yes"]) as pid:
        lab13.run(["nsenter", "--target", str(pid), "--mount", "mount", "-o", "remount,bind,nodev", "/dev"])
        assert open_as(lab13, pid, "/dev/nvidia0") == "EACCES"
        mend(lab13, only(lab13, "GPU-DEV-NODEV", pid))
        assert open_as(lab13, pid, "/dev/nvidia0") == "ENXIO"
        assert found(lab13, pid) == []


def test_a_cdi_specification_with_the_major_of_another_boot(lab13: Lab) -> None:
    """Docker makes the node with the stale number; with the specification written anew it makes the right one."""
    right = numbers(lab13)["/dev/nvidia-uvm"][0]
    command = ["docker", "run", "--rm", "--network=none", "--device=nvidia.com/gpu=0", docker_image(lab13)]
    seen = [*command, "stat", "-c", "%t", "/dev/nvidia-uvm"]
    lab13.put("/etc/cdi/nvidia.yaml", SPEC.format(major=right - 1).encode())
    try:
        assert int(lab13.run(seen).stdout, 16) == right - 1
        finding = only(lab13, "GPU-CDI-STALE-MAJMIN")
        # The lab has no driver from which nvidia-ctk or gpuiso could write it.
        assert "cdi generate" in finding["fix"][0]["command"]
        lab13.put("/etc/cdi/nvidia.yaml", SPEC.format(major=right).encode())
        assert int(lab13.run(seen).stdout, 16) == right
        assert found(lab13) == []
    finally:
        lab13.sh("rm -rf /etc/cdi/nvidia.yaml")


def test_a_container_from_a_stale_specification(lab13: Lab) -> None:
    right = numbers(lab13)["/dev/nvidia-uvm"][0]
    lab13.put("/etc/cdi/nvidia.yaml", SPEC.format(major=right - 1).encode())
    run = ["docker", "run", "--detach", "--network=none", "--device=nvidia.com/gpu=0", docker_image(lab13)]
    container = lab13.run(run).stdout.strip()
    try:
        pid = int(lab13.run(["docker", "inspect", "--format", "{{.State.Pid}}", container]).stdout)
        only(lab13, "GPU-CDI-STALE-MAJMIN", pid)
    finally:
        lab13.sh('docker rm -f "$1"; rm -rf /etc/cdi/nvidia.yaml', container)


def test_rootless_podman_with_the_legacy_hook(lab13: Lab) -> None:
    """bpf(2) refuses the hook in a user namespace for real; no-cgroups = true lets the container start."""
    lab13.put(CONFIG, b"[nvidia-container-cli]\n#no-cgroups = false\n")
    lab13.put(HOOK, LEGACY_HOOK.encode(), 0o755)
    when = '"when": {"always": true}, "stages": ["prestart"]'
    lab13.put(HOOKS, f'{{"version": "1.0.0", "hook": {{"path": "{HOOK}"}}, {when}}}'.encode())
    image = podman_image(lab13, rootless=True)
    directory = HOOKS.rpartition("/")[0]
    command = ["podman", f"--hooks-dir={directory}", "run", "--rm", "--network=none", image, "echo", "started"]
    try:
        refused = run_rootless(lab13, command, check=False)
        assert refused.returncode != 0
        assert "error executing hook" in refused.stderr
        assert lab13.get(LOG) == b"[Errno 1] bpf(PROG_QUERY): Operation not permitted"
        finding = only(lab13, "GPU-ROOTLESS-BPF-EPERM")
        assert "uid 1000" in finding["cause"]
        mend(lab13, finding)
        assert run_rootless(lab13, command).stdout.strip() == "started"
        assert found(lab13) == []
    finally:
        lab13.sh(f"rm -rf {CONFIG} {HOOK} {HOOKS} {LOG}")


def test_rootless_podman_that_may_not_read_the_specification(lab13: Lab) -> None:
    right = numbers(lab13)["/dev/nvidia-uvm"][0]
    lab13.put("/etc/cdi/nvidia.yaml", SPEC.format(major=right).encode())
    lab13.sh("chmod 0700 /etc/cdi")
    image = podman_image(lab13, rootless=True)
    command = ["podman", "run", "--rm", "--network=none", "--device=nvidia.com/gpu=0", image, "ls", "/dev/nvidia0"]
    try:
        refused = run_rootless(lab13, command, check=False)
        assert "unresolvable CDI devices nvidia.com/gpu=0" in refused.stderr
        mend(lab13, only(lab13, "GPU-CDI-UNRESOLVABLE"))
        assert run_rootless(lab13, command).stdout.strip() == "/dev/nvidia0"
        assert found(lab13) == []
    finally:
        lab13.sh("chmod 0755 /etc/cdi; rm -rf /etc/cdi/nvidia.yaml")
