# SPDX-License-Identifier: Apache-2.0
"""``gpuiso run`` on a host with systemd, and on one without."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator, Sequence

import pytest

from tests.cli.command import check_schema
from tests.lab.host import Lab
from tests.lab.rootless import USER, run_rootless
from tests.lab_checks.examine import UUIDS
from tests.tiers import requires

pytestmark = requires("lab")

GPUISO = ["python3", "-m", "tests.lab_checks.with_gpus"]
ELSEWHERE = "/init.scope"
"""A cgroup that systemd does not delegate: there a scope is made. The labs' own shell has a unit that delegates."""
WITHOUT = ["unshare", "--mount", "--", "sh", "-ec", 'mount -t tmpfs none /run/systemd; exec "$@"', "sh"]
"""Where /run/systemd/system is not, systemd is not the service manager (sd_booted(3))."""

ANSWERS = r"""
import errno, json, os, stat
def attempt(call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]
    return "0"
found = {name: attempt(os.open, f"/dev/{name}", os.O_RDWR) for name in ("nvidia0", "nvidia1", "nvidiactl", "null")}
for minor in (0, 1, 2):
    path = f"/var/tmp/made-{os.getpid()}-{minor}"
    found[f"mknod {minor}"] = attempt(os.mknod, path, stat.S_IFCHR | 0o600, os.makedev(195, minor))
    found[f"made {minor}"] = attempt(os.open, path, os.O_RDWR)
with open("/proc/self/cgroup") as file:
    cgroup = [line.strip()[3:] for line in file if line.startswith("0::")][0]
env = {name: os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES")}
print(json.dumps({"found": found, "cgroup": cgroup, "env": env, "uid": os.getuid()}))
"""
ONE_GPU = {
    "nvidia0": "ENXIO",
    "nvidia1": "EPERM",
    "nvidiactl": "ENXIO",
    "null": "0",
    "mknod 0": "0",
    "made 0": "ENXIO",
    "mknod 1": "EPERM",
    "made 1": "ENOENT",
    "mknod 2": "EPERM",
    "made 2": "ENOENT",
}
"""ENXIO: allowed, there is no driver behind the node."""


def run(
    lab: Lab, *arguments: str, cgroup: str = ELSEWHERE, before: Sequence[str] = (), env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return lab.run([*before, *GPUISO, "run", *arguments], check=False, cgroup=cgroup, env=env)


def leases(lab: Lab) -> dict[str, object]:
    found: dict[str, object] = json.loads(lab.run([*GPUISO, "leases", "--json"]).stdout)
    check_schema(found, "leases")
    return found


@pytest.fixture(params=["lab13", "lab12"])
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    found: Lab = request.getfixturevalue(request.param)
    found.run([*GPUISO, "recover"])  # what other tests left of targets that ended
    kept = "find /run/gpuiso -name '*.lease' -o -name '*.ticket' -o -name '*.json' | sort"
    before = found.sh(kept)
    yield found
    assert leases(found)["leases"] == []
    assert found.sh("find /sys/fs/cgroup -name 'gpuiso-*'") == ""
    assert found.sh(kept) == before


@pytest.mark.parametrize(
    ("cgroup", "before", "home"),
    [
        (ELSEWHERE, (), "/gpuiso-one.scope"),
        ("/system.slice/lab-shell.service", (), "/system.slice/lab-shell.service/gpuiso-one"),
        ("/system.slice/lab-shell.service", WITHOUT, "/system.slice/lab-shell.service/gpuiso-one"),
    ],
    ids=["scope", "delegated", "without systemd"],
)
@pytest.mark.parametrize("options", [(), ("--policy", "/opt/gpuiso/examples/run/policy.yaml")], ids=["", "policy"])
def test_exactly_one_gpu(lab: Lab, cgroup: str, before: Sequence[str], home: str, options: Sequence[str]) -> None:
    command = ["--gpus", "1", "--name", "one", *options, "--", "python3", "-c", ANSWERS]
    done = run(lab, *command, cgroup=cgroup, before=before, env={"CUDA_VISIBLE_DEVICES": "1", "ZE_AFFINITY_MASK": "1"})
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["found"] == ONE_GPU
    assert found["cgroup"] == home
    assert found["env"] == {
        "CUDA_VISIBLE_DEVICES": UUIDS[0],
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "NVIDIA_VISIBLE_DEVICES": "void",
    }
    assert done.stderr.splitlines() == [
        f"gpuiso run: CUDA_VISIBLE_DEVICES=1 was replaced by CUDA_VISIBLE_DEVICES={UUIDS[0]}",
        "gpuiso run: ZE_AFFINITY_MASK=1 was removed: it would select among the GPUs that were leased",
    ]


@pytest.mark.parametrize("cgroup", [ELSEWHERE, "/system.slice/lab-shell.service"], ids=["scope", "cgroup"])
def test_status_signals_and_streams(lab: Lab, cgroup: str) -> None:
    assert run(lab, "--gpus", "1", "--", "sh", "-c", "exit 7", cgroup=cgroup).returncode == 7
    script = f'{" ".join(GPUISO)} run --gpus 1 -- sh -c "$1"; echo $?'
    for signal, status in (("TERM", "143"), ("KILL", "137"), ("INT", "130")):
        ended = lab.run(["sh", "-c", script, "sh", f"kill -{signal} $$"], cgroup=cgroup).stdout
        assert ended.splitlines()[-1] == status
    echoed = lab.run([*GPUISO, "run", "--gpus", "1", "--", "tr", "a-z", "A-Z"], input="through\n", cgroup=cgroup)
    assert echoed.stdout == "THROUGH\n"
    # The shell's child is the program itself: a signal to it needs nobody to pass it on.
    wait = "until [ -e /tmp/ready ]; do sleep 0.05; done"
    trapped = f'{" ".join(GPUISO)} run --gpus 1 -- sh -c "$1" & {wait}; kill -USR1 $!; wait $!'
    program = 'trap "echo got; rm /tmp/ready; exit 5" USR1; touch /tmp/ready; while :; do sleep 0.05; done'
    done = lab.run(["sh", "-c", trapped, "sh", program], cgroup=cgroup, check=False)
    assert (done.stdout, done.returncode) == ("got\n", 5)


PTY = r"""
import os, pty, sys, time
pid, terminal = pty.fork()
if pid == 0:
    os.execvp(sys.argv[1], sys.argv[1:])
seen = b""
def until(word):
    global seen
    while word not in seen:
        seen += os.read(terminal, 4096)
until(b"ready")
os.write(terminal, b"typed\n")
until(b"read typed")
os.write(terminal, b"\x03")
until(b"interrupted")
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.mark.parametrize("cgroup", [ELSEWHERE, "/system.slice/lab-shell.service"], ids=["scope", "cgroup"])
def test_a_terminal(lab: Lab, cgroup: str) -> None:
    """It is in the foreground, reads what is typed, and gets the interrupt of the key, once."""
    program = 'trap "echo interrupted; exit 9" INT; tty >/dev/null && echo ready; read word; echo read $word; read word'
    command = ["python3", "-c", PTY, *GPUISO, "run", "--gpus", "1", "--", "sh", "-c", program]
    assert lab.run(command, cgroup=cgroup).stdout.strip() == "9"


def test_two_at_once_and_one_too_many(lab: Lab) -> None:
    names = ["first", "second"]
    for name in names:
        program = "exec sleep 1000 >/dev/null 2>&1"
        started = run(lab, "--gpus", "1", "--name", name, "--no-wait", "--json", "--", "sh", "-c", program)
        assert started.returncode == 0, started.stderr
        check_schema(json.loads(started.stdout), "run")
    try:
        listed = leases(lab)["leases"]
        assert isinstance(listed, list)
        assert [(entry["name"], entry["gpus"][0]["id"], entry["unit"]) for entry in listed] == [
            (f"gpuiso-{name}", uuid, f"gpuiso-{name}.scope") for name, uuid in zip(names, UUIDS, strict=True)
        ]
        refused = run(lab, "--gpus", "1", "--", "true")
        assert refused.returncode == 4
        assert f"GPU 0 ({UUIDS[0]}) is leased by gpuiso-first of root" in refused.stderr
        assert run(lab, "--gpus", "1", "--wait-for-gpu", "0.3", "--", "true").returncode == 4
        taken = run(lab, "--gpus", "1", "--name", "first", "--share", "--", "true")
        assert taken.returncode in (4, 7)
        script = (
            f"sleep 1; systemctl stop gpuiso-second.scope & {' '.join(GPUISO)} run --gpus 1 --wait-for-gpu 20 -- env"
        )
        waited = lab.run(["sh", "-c", script], cgroup=ELSEWHERE).stdout
        assert f"CUDA_VISIBLE_DEVICES={UUIDS[1]}" in waited.splitlines()
    finally:
        lab.sh("systemctl stop gpuiso-first.scope gpuiso-second.scope || true")
    for _ in range(50):
        if leases(lab)["leases"] == []:
            break
        time.sleep(0.1)


def test_a_user_and_a_private_dev(lab: Lab) -> None:
    command = ["--gpus", "1", "--user", USER, "--private-dev", "--", "python3", "-c", ANSWERS]
    for cgroup in (ELSEWHERE, "/system.slice/lab-shell.service"):
        found = json.loads(run(lab, *command, cgroup=cgroup).stdout)
        assert found["uid"] == 1000
        assert found["found"]["nvidia0"] == "ENXIO"
        assert found["found"]["nvidia1"] == "ENOENT"
        assert found["found"]["null"] == "0"
        assert {found["found"][f"mknod {minor}"] for minor in (0, 1, 2)} == {"EPERM"}
    listed = run(lab, "--gpus", "2", "--private-dev", "--", "ls", "/dev").stdout.split()
    assert {"nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null", "pts", "shm"} <= set(listed)
    assert not {"kmsg", "fuse", "mem"} & set(listed)


def test_a_service_keeps_its_program(lab: Lab) -> None:
    """In a unit with Delegate=yes the program stays in the unit: stopping the unit stops it."""
    properties = ["--property=Delegate=yes", "--property=Type=exec", "--property=WorkingDirectory=/opt/gpuiso"]
    environment = "--setenv=PYTHONPATH=/opt/gpuiso:/opt/site"
    unit = ["systemd-run", "--unit=train.service", *properties, environment]
    lab.run([*unit, *GPUISO, "run", "--gpus", "1", "--name", "train", "--", "sleep", "1000"])
    try:
        lab.wait_for(["test", "-d", "/sys/fs/cgroup/system.slice/train.service/gpuiso-train"])
        lab.wait_for(["sh", "-c", 'grep -q sleep "/proc/$(systemctl show -P MainPID train.service)/comm"'])
        pid = lab.sh("systemctl show -P MainPID train.service")
        assert lab.sh('sed -n s/^0:://p "/proc/$1/cgroup"', pid) == "/system.slice/train.service/gpuiso-train"
    finally:
        lab.sh("systemctl stop train.service")
    assert lab.sh('[ -e "/proc/$1" ] && echo alive || echo ended', pid) == "ended"


def test_rootless_is_refused_with_the_reason(lab: Lab) -> None:
    done = run_rootless(
        lab, ["env", "PYTHONPATH=/opt/gpuiso:/opt/site", *GPUISO, "run", "--gpus", "1", "--", "true"], check=False
    )
    assert done.returncode == 3
    assert "needs root (CAP_SYS_ADMIN)" in done.stderr
    assert f"sudo gpuiso run --user {USER}" in done.stderr


def test_grants_are_enforced(lab: Lab) -> None:
    text = f"gpuiso: 1\ngrants:\n- users: [{USER}]\n  gpus: [1]\n  most: 1\n"
    lab.put("/etc/gpuiso/policy.d/user.yaml", text.encode())
    try:
        given = run(lab, "--gpus", "1", "--user", USER, "--", "env")
        assert f"CUDA_VISIBLE_DEVICES={UUIDS[1]}" in given.stdout.splitlines()
        refused = run(lab, "--gpus", "2", "--user", USER, "--", "true")
        assert refused.returncode == 3
        assert "at most 1 GPU" in refused.stderr
        assert run(lab, "--gpus", "1", "--user", "nobody", "--", "true").returncode == 3
    finally:
        lab.sh("rm -r /etc/gpuiso/policy.d")


def test_what_ends_before_the_start(lab: Lab) -> None:
    for arguments, code in (
        (["--gpus", "1", "--", "nonesuch"], 127),
        (["--gpus", "1", "--", "/etc/passwd"], 126),
        (["--gpus", "5", "--", "true"], 4),
        (["--gpus", "0", "--", "true"], 2),
        (["--gpus", "1", "--user", "nonesuch", "--", "true"], 4),
        (["--gpus", "1", "--gpu-memory", "1G", "--", "true"], 5),
        (["--gpus", "1", "--gpu-max", "50000/100000", "--", "true"], 5),
        (["--gpus", "1", "--env", "CUDA_VISIBLE_DEVICES=1", "--", "true"], 2),
        (["--gpus", "1", "--no-wait", "--json", "--", "/opt/gpuiso/README.md"], 126),
    ):
        done = run(lab, *arguments)
        assert done.returncode == code, (arguments, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr


def test_print_changes_nothing(lab: Lab) -> None:
    shown = json.loads(run(lab, "--gpus", "1", "--print", "--json", "--env", "A=b", "--", "env").stdout)
    check_schema(shown, "run")
    assert shown["gpus"] == [UUIDS[0]]
    assert "allow c 195:0 rwm" in shown["rules"]
    assert shown["environment"]["A"] == "b"
    assert shown["home"].endswith(".scope in -.slice")
    assert "lease GPU 0" in run(lab, "--gpus", "1", "--print", "--private-dev", "--", "env").stdout
