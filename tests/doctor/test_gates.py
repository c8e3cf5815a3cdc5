# SPDX-License-Identifier: Apache-2.0
"""The gates, from records and against this kernel."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuiso.devfilter.compile import compile_rules
from gpuiso.devfilter.insn import pack
from gpuiso.doctor.gates import explain
from gpuiso.host.live import LiveHost
from gpuiso.kernel.bpf import BPF_F_ALLOW_MULTI, BPF_F_ALLOW_OVERRIDE, prog_attach, prog_load
from gpuiso.kernel.clone3 import clone3
from gpuiso.policy.parse import parse_rules
from tests.records import RecordMaker
from tests.tiers import cgroup2_mount, requires

DENY_ALL = "b7000000000000009500000000000000"  # r0 = 0; exit


def verdicts(maker: RecordMaker, path: str, access: str = "rw") -> tuple[str, str | None, str | None]:
    answer = explain(maker.host(), 7, path, access)
    gate = answer.denied_by
    return answer.verdict, None if gate is None else gate.gate, None if gate is None else gate.errno


def test_an_open_way(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    maker.add_process(7)
    answer = explain(maker.host(), 7, "/dev/nvidia0")
    assert answer.verdict == "allow"
    assert [gate.gate for gate in answer.gates] == ["path", "nodev", "mode", "cgroup-v2", "driver"]


def test_the_path(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    maker.add_process(7, own_dev={"/dev/null": (1, 3)})
    assert verdicts(maker, "/dev/nvidia0") == ("deny", "path", "ENOENT")


def test_nodev(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    maker.add_process(7)
    maker.files["/proc/7/mountinfo"] = "1 0 8:1 / / rw,nodev - ext4 /dev/sda1 rw\n"
    assert verdicts(maker, "/dev/nvidia0") == ("deny", "nodev", "EACCES")


@pytest.mark.parametrize(
    ("mode", "uid", "access", "expected"),
    [
        ("0600", 0, "rw", ("allow", None, None)),
        ("0600", 1000, "rw", ("deny", "mode", "EACCES")),
        ("0666", 1000, "rw", ("allow", None, None)),
        ("0444", 1000, "rw", ("deny", "mode", "EACCES")),
        ("0444", 1000, "r", ("allow", None, None)),
        ("0060", 1000, "rw", ("deny", "mode", "EACCES")),
    ],
)
def test_the_mode(
    tmp_path: Path, mode: str, uid: int, access: str, expected: tuple[str, str | None, str | None]
) -> None:
    maker = RecordMaker(tmp_path)
    maker.add_process(7, uid=uid)
    maker.add_node("/proc/7/root/dev/nvidia0", 195, 0, mode)
    assert verdicts(maker, "/dev/nvidia0", access) == expected


@requires("kernel")
@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ("u::rw,g::-,o::-,u:65534:rw,m::rw", "allow"),
        ("u::rw,g::-,o::-,u:65534:rw,m::r", "deny"),
        ("u::rw,g::-,o::rw,u:65534:-,m::rw", "deny"),
        ("u::rw,g::-,o::-,g:65534:rw,m::rw", "allow"),
        ("u::rw,g::-,o::rw,g:65534:r,m::rw", "deny"),
        ("u::rw,g::-,o::-,u:1:rw,m::rw", "deny"),
    ],
)
def test_an_access_control_list_decides_as_the_kernel_does(tmp_path: Path, entries: str, expected: str) -> None:
    node = tmp_path / "node"
    os.mknod(node, 0o20660, os.makedev(1, 3))
    for directory in (tmp_path, *list(tmp_path.parents)[:-1]):
        directory.chmod(directory.stat().st_mode | 0o111)
    os.setxattr(node, "system.posix_acl_access", acl(entries))
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
        os.write(told, b"x")
        signal.pause()
        os._exit(0)
    try:
        assert os.read(ready, 1) == b"x"
        answer = explain(LiveHost(), pid, str(node), probe=True)
        assert (answer.verdict, answer.disagreement) == (expected, None)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(ready)
        os.close(told)


def acl(text: str) -> bytes:
    """``u:UID:rw,...`` as the kernel stores it."""
    tags = {("u", False): 1, ("u", True): 2, ("g", False): 4, ("g", True): 8, ("m", False): 16, ("o", False): 32}
    entries = []
    for entry in text.split(","):
        kind, number, letters = entry.split(":")
        permissions = 4 * ("r" in letters) + 2 * ("w" in letters)
        entries.append((tags[kind, bool(number)], permissions, int(number) if number else 0xFFFFFFFF))
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in sorted(entries))


def test_a_group_that_owns_the_node(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    maker.add_process(7, uid=1000)
    maker.add_node("/proc/7/root/dev/nvidia0", 195, 0, "0660")
    maker.nodes["/proc/7/root/dev/nvidia0"]["gid"] = 44
    assert verdicts(maker, "/dev/nvidia0")[0] == "deny"
    maker.files["/proc/7/status"] = str(maker.files["/proc/7/status"]).replace("Groups:\t1000", "Groups:\t27 44")
    assert verdicts(maker, "/dev/nvidia0")[0] == "allow"


def test_root_of_a_user_namespace_does_not_pass_over_the_mode(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    maker.add_process(7)
    maker.add_node("/proc/7/root/dev/nvidia0", 195, 0, "0600")
    maker.nodes["/proc/7/root/dev/nvidia0"]["uid"] = 65534
    maker.files["/proc/7/uid_map"] = maker.files["/proc/7/gid_map"] = "         0     100000      65536\n"
    assert verdicts(maker, "/dev/nvidia0") == ("deny", "mode", "EACCES")
    maker.files["/proc/7/uid_map"] = maker.files["/proc/7/gid_map"] = "         0          0 4294967295\n"
    assert verdicts(maker, "/dev/nvidia0")[0] == "allow"


@pytest.mark.parametrize(
    ("enforce", "label", "expected"),
    [
        ("1\n", "system_u:system_r:container_t:s0:c1,c2\0", ("unknown", "SELinux")),
        ("1\n", "unconfined_u:unconfined_r:unconfined_t:s0-s0:c0.c1023\0", ("allow", None)),
        ("0\n", "system_u:system_r:container_t:s0:c1,c2\0", ("allow", None)),
        (None, "docker-default (enforce)\n", ("allow", "AppArmor")),
        (None, "snap.ollama.ollama (enforce)\n", ("unknown", "AppArmor")),
        (None, "snap.ollama.ollama (complain)\n", ("allow", None)),
        (None, "unconfined\n", ("allow", None)),
    ],
)
def test_security_modules(tmp_path: Path, enforce: str | None, label: str, expected: tuple[str, str | None]) -> None:
    maker = RecordMaker(tmp_path)
    maker.add_process(7)
    maker.files["/proc/7/attr/current"] = label
    maker.files["/sys/fs/selinux/enforce"] = enforce
    answer = explain(maker.host(), 7, "/dev/nvidia0")
    by = next((gate.by for gate in answer.gates if gate.gate == "lsm"), None)
    assert (answer.verdict, by) == expected


def test_a_probe_does_not_speak_for_a_security_module(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    maker.add_process(7)
    maker.files["/proc/7/attr/current"] = "system_u:system_r:container_t:s0\0"
    maker.files["/sys/fs/selinux/enforce"] = "1\n"
    maker.write()
    (tmp_path / "probes.json").write_text('{"7": {}}')
    answer = explain(maker.host(), 7, "/dev/nvidia0")
    assert (answer.verdict, answer.disagreement) == ("unknown", None)


def test_no_driver_for_the_major(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    maker.add_process(7)
    maker.add_node("/proc/7/root/dev/nvidia-uvm", 510, 0)
    assert verdicts(maker, "/dev/nvidia-uvm") == ("deny", "driver", "ENXIO")


def test_a_level_that_may_not_be_asked_is_unknown_unless_another_denies(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    maker.add_process(7)
    maker.cgroups["/job"] = {"device_programs": None}
    answer = explain(maker.host(), 7, "/dev/nvidia0")
    assert answer.verdict == "unknown"
    assert "not permitted" in (answer.unknown_because or "")
    deny_all = "b7000000000000009500000000000000"  # r0 = 0; exit
    maker.cgroups["/"] = {"device_programs": [{"id": 1, "name": "", "tag": "", "attach_flags": 2, "insns": deny_all}]}
    answer = explain(maker.host(), 7, "/dev/nvidia0")
    assert answer.verdict == "deny"
    assert answer.denied_by is not None
    assert (answer.denied_by.where, answer.denied_by.errno) == ("/", "EPERM")


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ("c 195:* rw\n", "allow"),
        ("c 195:* m\nc 195:0 r\n", "deny"),  # the kernel wants one line that covers the whole access
        ("c *:* m\nb *:* m\n", "deny"),
        ("a *:* rwm\n", "unknown"),
    ],
)
def test_the_v1_list(tmp_path: Path, listed: str, expected: str) -> None:
    maker = RecordMaker(tmp_path)
    maker.add_process(7)
    maker.files["/proc/7/cgroup"] = "4:devices:/docker/x\n"
    maker.header["cgroup_mode"] = "legacy"
    maker.files["/sys/fs/cgroup/devices/docker/x/devices.list"] = listed
    assert explain(maker.host(), 7, "/dev/nvidia0").verdict == expected


@pytest.fixture
def cgroup() -> Iterator[Path]:
    mount = cgroup2_mount()
    assert mount is not None
    path = Path(mount) / f"gpuiso-gates-{os.getpid()}"
    path.mkdir()
    yield path
    path.rmdir()


@contextmanager
def denied(directory: Path) -> Iterator[int]:
    """A waiting process in a cgroup whose program denies every device."""
    program = prog_load(bytes.fromhex(DENY_ALL))
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    prog_attach(fd, program)
    pid, pidfd = clone3(cgroup_fd=fd)
    if pid == 0:
        signal.pause()
        os._exit(0)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        for each in (pidfd, fd, program):
            os.close(each)


@requires("kernel")
def test_a_cgroup_whose_name_is_not_utf8(cgroup: Path) -> None:
    inner = cgroup / os.fsdecode(b"\xff\xfe")
    inner.mkdir()
    try:
        with denied(inner) as pid:
            answer = explain(LiveHost(), pid, "/dev/null", probe=True)
            assert (answer.verdict, answer.disagreement) == ("deny", None)
            assert answer.denied_by is not None
            assert os.fsencode(answer.denied_by.where) == os.fsencode(f"/{cgroup.name}/") + b"\xff\xfe"
    finally:
        inner.rmdir()


@requires("kernel")
@pytest.mark.parametrize(
    ("unshared", "hide", "says"),
    [
        ("-m", "mount -t tmpfs none /sys/fs/cgroup", "cgroup"),
        ("-m", "umount -l {mount}", "no cgroup2 tree is mounted here"),
        ("-m", "mount -t tmpfs none {mount}", "no cgroup v2"),
        ("-m", "mount --bind {mount}/{cgroup}/a /mnt && umount -l {mount} && mount --move /mnt {mount}", "outside"),
        ("-m", "mount --bind {mount}/{cgroup}/a {mount}/{cgroup}/b", "another mount covers it"),
        ("-mC", "true", "outside of the cgroup namespace"),
        ("-mC", "umount -l {mount} && mount -t cgroup2 none {mount}", "outside of the cgroup namespace"),
    ],
)
def test_a_program_that_cannot_be_seen_is_not_taken_for_none(cgroup: Path, unshared: str, hide: str, says: str) -> None:
    for name in ("a", "b"):
        (cgroup / name).mkdir()
    script = hide.format(mount=cgroup.parent, cgroup=cgroup.name)
    try:
        with denied(cgroup / "b") as pid:
            code, text = explained_from(cgroup / "a", unshared, script, pid)
    finally:
        (cgroup / "a").rmdir()
        (cgroup / "b").rmdir()
    assert code == 5
    assert says in text


@requires("kernel")
def test_a_program_above_the_root_of_a_cgroup_namespace(cgroup: Path) -> None:
    (cgroup / "a").mkdir()
    script = f"umount -l {cgroup.parent} && mount -t cgroup2 none {cgroup.parent}"
    child, pidfd = clone3(cgroup_fd=(fd := os.open(cgroup / "a", os.O_RDONLY | os.O_DIRECTORY)))
    if child == 0:
        signal.pause()
        os._exit(0)
    os.close(fd)
    os.close(pidfd)
    try:
        with denied_open_only(cgroup):
            code, text = explained_from(cgroup / "a", "-mC", script, child)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        (cgroup / "a").rmdir()
    assert code == 5
    assert "cannot be seen from here" in text


@contextmanager
def denied_open_only(directory: Path) -> Iterator[None]:
    """A program that denies /dev/full, of which nothing else takes notice, on a cgroup."""
    program = prog_load(pack(compile_rules(parse_rules("allow a\ndeny c 1:7 rw"))))
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    prog_attach(fd, program)
    try:
        yield
    finally:
        os.close(fd)
        os.close(program)


def explained_from(place: Path, unshared: str, script: str, pid: int) -> tuple[int, str]:
    """The exit code and output of an explain that runs in a cgroup, with mounts changed by a script."""
    command = f"{sys.executable} -m gpuiso explain --pid {pid} --json /dev/full"
    shell = f"mount --make-rprivate / && {script} && exec {command}"
    argv = ["unshare", unshared, "sh", "-c", shell]
    enter = f'echo $$ > {place}/cgroup.procs; exec "$@"'
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        ["sh", "-c", enter, "sh", *argv], capture_output=True, text=True, env=environment, timeout=60, check=False
    )
    return done.returncode, done.stdout + done.stderr


@requires("kernel")
@pytest.mark.parametrize(
    ("above", "below", "expected"),
    [
        (BPF_F_ALLOW_OVERRIDE, 0, "allow"),
        (BPF_F_ALLOW_OVERRIDE, BPF_F_ALLOW_OVERRIDE, "allow"),
        (BPF_F_ALLOW_MULTI, BPF_F_ALLOW_MULTI, "deny"),
        (BPF_F_ALLOW_MULTI, 0, "deny"),
        (BPF_F_ALLOW_OVERRIDE, None, "deny"),
    ],
)
def test_a_level_that_gives_way_to_one_below(cgroup: Path, above: int, below: int | None, expected: str) -> None:
    inner = cgroup / "inner"
    inner.mkdir()
    directories = [os.open(path, os.O_RDONLY | os.O_DIRECTORY) for path in (cgroup, inner)]
    programs = [prog_load(bytes.fromhex(code)) for code in (DENY_ALL, "b7000000010000009500000000000000")]
    for directory, program, flags in zip(directories, programs, (above, below), strict=True):
        if flags is not None:
            prog_attach(directory, program, flags=flags)
    pid, pidfd = clone3(cgroup_fd=directories[1])
    if pid == 0:
        signal.pause()
        os._exit(0)
    try:
        answer = explain(LiveHost(), pid, "/dev/null", probe=True)
        assert (answer.verdict, answer.disagreement) == (expected, None)
        says = {gate.where: gate.says for gate in answer.gates if gate.gate == "cgroup-v2"}
        assert ("not run" in says[f"/{cgroup.name}"]) == (expected == "allow")
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        for fd in (pidfd, *directories, *programs):
            os.close(fd)
        inner.rmdir()


@requires("kernel")
def test_a_live_process_behind_a_program_that_denies_everything(cgroup: Path) -> None:
    program = prog_load(bytes.fromhex("b7000000000000009500000000000000"))
    directory = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY)
    prog_attach(directory, program)
    pid, pidfd = clone3(cgroup_fd=directory)
    if pid == 0:
        signal.pause()
        os._exit(0)
    try:
        answer = explain(LiveHost(), pid, "/dev/null")
        assert answer.denied_by is not None
        assert answer.denied_by.where == f"/{cgroup.name}"
        assert explain(LiveHost(), os.getpid(), "/dev/null").verdict == "allow"
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        for fd in (pidfd, directory, program):
            os.close(fd)
