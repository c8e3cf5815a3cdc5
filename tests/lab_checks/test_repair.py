# SPDX-License-Identifier: Apache-2.0
"""Containers of real engines that lost their GPUs get them back, and nothing else changes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cli.command import check_schema
from tests.lab.access import open_in_container
from tests.lab.faults import lose_gpu_by_daemon_reload, lose_gpu_by_set_property
from tests.lab.host import Lab
from tests.lab.images import podman_image
from tests.lab_checks.lab import NODES, docker_container, found, hook, opened, put_nodes
from tests.tiers import requires

pytestmark = requires("lab")

GPUISO = ["python3", "-m", "tests.lab_checks.with_gpus"]
TIMES = 10


def repair(lab: Lab, *arguments: str, code: int = 0) -> dict[str, Any]:
    """What ``gpuiso repair --json`` says."""
    done = lab.run([*GPUISO, "repair", *arguments, "--json"], check=False)
    assert done.returncode == code, done.stdout + done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    check_schema(said, "repair" if code == 0 else "error")
    return said


def state(lab: Lab, container: str) -> dict[str, Any]:
    """What a repair could change: the unit's settings and files, the programs, gpuiso's own files."""
    scope = f"docker-{container}.scope"
    shown = lab.run(["systemctl", "show", "--property=DevicePolicy,DeviceAllow,DropInPaths,NeedDaemonReload", scope])
    show = "from gpuiso.host.device_programs import query_device_programs as q; import sys;"
    programs = lab.python(
        f"{show} print([(p.name, p.insns.hex()) for p in q(sys.argv[1], '/')])",
        f"/sys/fs/cgroup/system.slice/{scope}",
    )
    files = lab.sh(
        'cd /run/systemd/transient; for f in "$1"* "$1".d/*; do [ -f "$f" ] && echo "$f" && cat "$f"; done; '
        "ls /run/gpuiso/journal /run/gpuiso/policies 2>/dev/null || true",
        scope,
    )
    return {
        "unit": sorted(shown.stdout.replace("DeviceAllow=", "\nDeviceAllow=").splitlines()),
        "programs": programs.stdout,
        "files": files,
        "other nodes": {path: open_in_container(lab, container, path) for path in ("/dev/null", "/dev/full")},
    }


def started(lab: Lab, container: str) -> str:
    """When a container began, and its process: a restart changes both."""
    return lab.run(["docker", "inspect", "--format", "{{.State.StartedAt}} {{.State.Pid}}", container]).stdout


def test_ten_losses_to_daemon_reload(lab12: Lab) -> None:
    for number in range(TIMES):
        lost = lose_gpu_by_daemon_reload(lab12, f"lost-{number}")
        try:
            assert (lost.hooked, lost.after) == ("ENXIO", "EPERM")
            before = started(lab12, lost.container)
            said = repair(lab12, "--container", lost.container)
            assert said["result"] == "repaired"
            assert [each["path"] for each in said["lost"]] == ["/dev/nvidia0", "/dev/nvidiactl"]
            assert {denial["owner"] for each in said["lost"] for denial in each["denied_by"]} == {"systemd"}
            assert open_in_container(lab12, lost.container, lost.node) == "ENXIO"
            lab12.run(["systemctl", "daemon-reload"])
            assert open_in_container(lab12, lost.container, lost.node) == "ENXIO"
            assert open_in_container(lab12, lost.container, "/dev/nvidiactl") == "ENXIO"
            assert repair(lab12, "--container", lost.container)["result"] == "nothing-to-repair"
            assert started(lab12, lost.container) == before
        finally:
            lab12.run(["docker", "rm", "--force", lost.container], check=False)


def test_a_loss_to_a_property_of_the_scope(lab13: Lab) -> None:
    lost = lose_gpu_by_set_property(lab13)
    try:
        assert (lost.hooked, lost.after) == ("ENXIO", "EPERM")
        before = state(lab13, lost.container)
        planned = repair(lab13, "--container", lost.container, "--dry-run")
        assert planned["result"] == "planned"
        assert planned["plan"]
        assert state(lab13, lost.container) == before
        assert repair(lab13, "--container", "lost-by-property")["result"] == "repaired"
        assert open_in_container(lab13, lost.container, lost.node) == "ENXIO"
        lab13.run(["systemctl", "set-property", "--runtime", lost.scope, "TasksMax=6000"])
        lab13.run(["systemctl", "daemon-reload"])
        assert open_in_container(lab13, lost.container, lost.node) == "ENXIO"
    finally:
        lab13.run(["docker", "rm", "--force", lost.container], check=False)


@pytest.mark.parametrize("release", ["lab12", "lab13"])
def test_docker_update(release: str, request: pytest.FixtureRequest) -> None:
    lab: Lab = request.getfixturevalue(release)
    with docker_container(lab) as (container, pid):
        hook(lab, container)
        lab.run(["docker", "update", "--restart", "no", container])
        lab.run(["systemctl", "set-property", "--runtime", f"docker-{container}.scope", "CPUWeight=90"])
        assert opened(lab, container) == {"EPERM"}
        said = repair(lab, "--pid", str(pid))
        assert sorted(each["path"] for each in said["lost"]) == sorted(NODES)
        assert opened(lab, container) == {"ENXIO"}
        assert found(lab, pid) == []


def test_what_was_never_given_is_not_given(lab13: Lab) -> None:
    """A container makes itself a node, which most engines let it: no repair hands the GPU out."""
    with docker_container(lab13) as (container, _):
        put_nodes(lab13, container)
        error = repair(lab13, "--container", container, code=5)["error"]
        assert "nothing shows that it ever was given that" in error["message"]
        assert "--node /dev/nvidia0" in error["hint"]
        assert opened(lab13, container) == {"EPERM"}
        said = repair(lab13, "--container", container, "--node", "/dev/nvidia0")
        assert said["result"] == "repaired"
        assert opened(lab13, container) == {"ENXIO"}
        lab13.run(["systemctl", "daemon-reload"])
        assert opened(lab13, container) == {"ENXIO"}
        lab13.run([*GPUISO, "rules", "remove", "--container", container])
        assert opened(lab13, container) == {"EPERM"}


def test_a_program_of_crun(lab13: Lab) -> None:
    """podman with crun: its program is widened where it is, and the scope's list as well."""
    image = podman_image(lab13)
    name = lab13.run(["podman", "run", "--detach", "--network=none", "--cap-add=MKNOD", image]).stdout.strip()
    try:
        put = 'podman exec "$1" mknod -m 666 "$2" c 195 "$3"'
        lab13.sh(put, name, "/dev/nvidia0", "0")
        lab13.sh(put, name, "/dev/nvidiactl", "255")
        assert open_in_container(lab13, name, "/dev/nvidia0", engine="podman") == "EPERM"
        said = repair(lab13, "--container", name, "--node", "/dev/nvidia0")
        assert said["result"] == "repaired"
        assert "crun" in {denial["owner"] for each in said["lost"] for denial in each["denied_by"]}
        for _ in range(2):
            for path in ("/dev/nvidia0", "/dev/nvidiactl"):
                assert open_in_container(lab13, name, path, engine="podman") == "ENXIO"
            assert open_in_container(lab13, name, "/dev/null", engine="podman") == "0"
            lab13.run(["systemctl", "daemon-reload"])
    finally:
        lab13.run(["podman", "rm", "--force", "--time", "0", name], check=False)


def test_what_rules_cannot_put_right_is_named(lab13: Lab) -> None:
    devices = [f"--device={path}" for path in NODES]
    with docker_container(lab13, *devices) as (container, _):
        assert repair(lab13, "--container", container)["result"] == "nothing-to-repair"
        lab13.run(["docker", "exec", container, "rm", "/dev/nvidia0"])
        error = repair(lab13, "--container", container, code=5)["error"]
        assert "/dev/nvidia0 is missing" in error["message"]
        assert "gate: path" in error["message"]
    with docker_container(lab13, "--user=1000", *devices) as (container, _):
        lab13.run(["docker", "exec", "--user=0", container, "chmod", "0600", "/dev/nvidia0"])
        error = repair(lab13, "--container", container, code=5)["error"]
        assert "/dev/nvidia0: the gate mode" in error["message"]
    with docker_container(lab13) as (container, pid):
        hook(lab13, container)
        lab13.sh('nsenter -t "$1" -m -p mount -o remount,bind,nodev /dev', str(pid))
        lab13.run(["systemctl", "set-property", "--runtime", f"docker-{container}.scope", "TasksMax=5000"])
        assert "gate nodev" in repair(lab13, "--pid", str(pid), code=5)["error"]["message"]


def test_who_is_no_container(lab13: Lab) -> None:
    assert "no container 'nosuch'" in repair(lab13, "--container", "nosuch", code=4)["error"]["message"]
    assert "process 1 is in no container" in repair(lab13, "--pid", "1", code=4)["error"]["message"]
    assert repair(lab13, "--pid", "4194303", code=4)["error"]["code"] == "not-found"
    assert repair(lab13, code=2)["error"]["code"] == "usage"
    with docker_container(lab13) as (container, _):
        assert repair(lab13, "--container", container)["result"] == "nothing-to-repair"
        lab13.run(["docker", "stop", "--time", "0", container])
        assert "does not run" in repair(lab13, "--container", container, code=4)["error"]["message"]


def test_a_policy_is_no_loss(lab13: Lab) -> None:
    devices = [f"--device={path}" for path in NODES]
    with docker_container(lab13, *devices) as (container, _):
        lab13.put("/tmp/closed.yaml", b"gpuiso: 1\ndevices: [allow default-nodes]\n")
        lab13.run([*GPUISO, "rules", "apply", "--container", container, "/tmp/closed.yaml"])
        assert "by a policy that gpuiso applied" in repair(lab13, "--container", container, code=5)["error"]["message"]


# Fails, or dies, at each call of a repair in turn; prints how many there were and what differs afterwards.
FAULTS = """
import json, os, subprocess, sys
from pathlib import Path
from gpuiso.apply.calls import Calls
from gpuiso.apply.engine import carry_out
from gpuiso.apply.recover import recover
from gpuiso.apply.state import State
from gpuiso.doctor.machine import Machine
from gpuiso.errors import FailedAndUndone
from gpuiso.host.device_programs import query_device_programs
from gpuiso.repair.diagnose import diagnose, find
from gpuiso.repair.plan import plan_repair
from gpuiso.systemd.bus import connect
from tests.apply.faults import Counted, Die, Fail
from tests.lab_checks.examine import LabHost

container, unit, named = sys.argv[1], sys.argv[2], sys.argv[3:]
state, calls = State(Path("/run/gpuiso-test")), Calls()
home = "/sys/fs/cgroup" + calls.unit_properties(unit)["ControlGroup"]

def look():
    shown = calls.unit_properties(unit)
    files = sorted(Path("/run/systemd/transient").glob(unit + "*")) + sorted(state.directory.rglob("*"))
    files += [file for path in files if path.is_dir() for file in sorted(path.iterdir())]
    levels = [home, *map(str, sorted(path for path in Path(home).rglob("*") if path.is_dir()))]
    paths = [path for path in files if path.is_file() and path.name != "lock" and ".partial" not in path.name]
    return {
        "unit": {name: shown[name] for name in ("DevicePolicy", "DeviceAllow")},
        "programs": [[(p.name, p.insns.hex()) for p in query_device_programs(path, path) or ()] for path in levels],
        "files": {str(path): path.read_text() for path in paths},
    }

def go(faulty):
    host = LabHost()
    machine = Machine(host)
    found = diagnose(machine, *find(machine, container=container, pid=None), named=named)
    carry_out(plan_repair(host, calls, found), state=state, calls=faulty)

before, differs, kinds = look(), [], {"failed": 0, "died": 0}
number, done, finished = 1, False, False
while not finished:
    for kind in (Fail, Die):
        if kind is Fail:
            try:
                go(Fail(number, done=done))
            except FailedAndUndone:
                kinds["failed"] += 1
            else:
                finished = True
                break
        else:
            child = os.fork()
            if child == 0:
                connect.cache_clear()
                try:
                    go(Die(number, done=done))
                finally:
                    os._exit(0)
            _, status = os.waitpid(child, 0)
            assert os.WIFSIGNALED(status), status
            kinds["died"] += 1
            recover(state, calls)
            if list(state.policies.glob("*.json")):
                finished = True  # it died when the repair was complete, and the journal gone
                break
        after = look()
        if after != before:
            changed = {key: [before[key], after[key]] for key in before if before[key] != after[key]}
            differs.append([kind.__name__, number, done, changed])
    number, done = (number, True) if not done else (number + 1, False)
print(json.dumps({"differs": differs[:3], "count": len(differs), **kinds}))
"""


def faults(lab: Lab, container: str, unit: str, *named: str) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(lab.python(FAULTS, container, unit, *named, timeout=300).stdout)
    return said


def test_a_failure_at_any_call_leaves_all_as_before(lab12: Lab) -> None:
    lost = lose_gpu_by_daemon_reload(lab12, "lost-and-failed")
    try:
        said = faults(lab12, lost.container, lost.scope)
        assert said["count"] == 0, said["differs"]
        assert said["failed"] > 20
        assert said["died"] > 20
        assert open_in_container(lab12, lost.container, lost.node) == "ENXIO"
    finally:
        lab12.run(["docker", "rm", "--force", lost.container], check=False)
