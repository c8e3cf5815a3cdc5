# SPDX-License-Identifier: Apache-2.0
"""The gates, from records and against this kernel."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import stat
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuiso.devfilter.compile import compile_rules
from gpuiso.devfilter.insn import pack
from gpuiso.doctor.gates import explain
from gpuiso.host.live import LiveHost
from gpuiso.kernel.bpf import BPF_F_ALLOW_MULTI, BPF_F_ALLOW_OVERRIDE, prog_attach, prog_load
from gpuiso.kernel.capability import CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, capset, prctl_set_keepcaps
from gpuiso.kernel.clone3 import clone3
from gpuiso.kernel.libc import libc
from gpuiso.kernel.ns import CLONE_NEWNS, CLONE_NEWUSER
from gpuiso.policy.parse import parse_rules
from tests.records import RecordMaker
from tests.tiers import cgroup2_mount, requires

MS_NODEV, MS_REC, MS_PRIVATE = 4, 0x4000, 1 << 18
DENY_ALL = "b7000000000000009500000000000000"  # r0 = 0; exit


def mount(source: str | None, target: Path | str, fstype: str | None, flags: int) -> None:
    words = [None if word is None else os.fsencode(word) for word in (source, target, fstype)]
    assert libc.mount(*words, ctypes.c_ulong(flags), None) == 0, os.strerror(ctypes.get_errno())


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


def test_a_path_that_asks_for_a_directory(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    maker.add_process(7)
    for end in ("/", "/.", "//"):
        assert verdicts(maker, f"/dev/nvidia0{end}") == ("deny", "path", "ENOTDIR")
    assert verdicts(maker, "//dev/./nvidia0")[0] == "allow"


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


@contextmanager
def waiting(prepare: Callable[[], None]) -> Iterator[int]:
    """A child that has done ``prepare`` and waits."""
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            prepare()
            os.write(told, b"x")
            signal.pause()
        finally:
            os._exit(1)
    os.close(told)
    try:
        assert os.read(ready, 1) == b"x"
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(ready)


def own_view(directory: Path) -> None:
    """A mount namespace with a tmpfs on ``directory``, where nodes of many kinds lie."""
    assert libc.unshare(CLONE_NEWNS) == 0
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    mount("t", directory, "tmpfs", 0)
    for name in ("priv", "nodev", "cov", "cov/sub", "cov2", "cov2/sub", "sticky"):
        (directory / name).mkdir(mode=0o755)
    mount("t", directory / "nodev", "tmpfs", MS_NODEV)
    mount("t", directory / "cov/sub", "tmpfs", MS_NODEV)
    mount("t", directory / "cov", "tmpfs", 0)
    mount("t", directory / "cov2/sub", "tmpfs", 0)
    mount("t", directory / "cov2", "tmpfs", MS_NODEV)
    for name in ("cov/sub", "cov2/sub"):
        (directory / name).mkdir()
    modes = {"priv/n": 0o666, "nodev/n": 0o666, "cov/sub/n": 0o666, "cov2/sub/n": 0o666, "none": 0, "owned": 0o600}
    for name, mode in {**modes, "read": 0o444, "any": 0o666}.items():
        os.mknod(directory / name, stat.S_IFCHR, os.makedev(1, 3))
        (directory / name).chmod(mode)
    os.chown(directory / "owned", 65534, 65534)
    (directory / "link").symlink_to("nodev/n")
    (directory / "way").symlink_to(directory / "priv")
    (directory / "sticky" / "link").symlink_to(directory / "any")
    os.lchown(directory / "sticky" / "link", 12345, 12345)
    (directory / "sticky").chmod(0o1777)
    (directory / "priv").chmod(0o700)
    directory.chmod(0o755)


VIEW = (
    *("any", "none", "owned", "read", "priv/n", "way/n", "nodev/n", "link", "cov/sub/n", "cov2/sub/n"),
    *("sticky/link", "sticky/../any", "nodev/../any"),
)


def become_nobody(*capabilities: int) -> None:
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    prctl_set_keepcaps(keep=True)
    os.setresuid(65534, 65534, 65534)
    held = sum(1 << number for number in capabilities)
    capset(held, held)


def user_namespace_of_nobody() -> None:
    become_nobody()
    libc.prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: else its own map belongs to root
    assert libc.unshare(CLONE_NEWUSER) == 0
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text("0 65534 1")
    Path("/proc/self/gid_map").write_text("0 65534 1")


def user_namespace_of_root() -> None:
    assert libc.unshare(CLONE_NEWUSER) == 0
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text("0 0 1")
    Path("/proc/self/gid_map").write_text("0 0 1")


@requires("kernel")
@pytest.mark.parametrize(
    "become",
    [
        lambda: None,
        become_nobody,
        lambda: become_nobody(CAP_DAC_OVERRIDE),
        lambda: become_nobody(CAP_DAC_READ_SEARCH),
        user_namespace_of_nobody,
        user_namespace_of_root,
        lambda: libc.setfsuid(65534),
        lambda: capset(0, 0),
    ],
    ids=["root", "nobody", "override", "search", "userns-nobody", "userns-root", "fsuid", "nocaps"],
)
def test_what_is_read_is_what_open_meets(tmp_path: Path, become: Callable[[], object]) -> None:
    for directory in (tmp_path, *list(tmp_path.parents)[:-1]):
        directory.chmod(directory.stat().st_mode | 0o111)
    answers, told = os.pipe()

    def prepare() -> None:
        own_view(tmp_path)
        become()
        met = [tried(str(tmp_path / name), access) for name in VIEW for access in ("r", "rw")]
        os.write(told, json.dumps(met).encode())

    with waiting(prepare) as pid:
        met = json.loads(os.read(answers, 1 << 16))
        host = LiveHost()
        found = []
        for name in VIEW:
            for access in ("r", "rw"):
                answer = explain(host, pid, str(tmp_path / name), access, probe=True)
                assert answer.disagreement is None, (name, access)
                found.append("allow" if answer.verdict == "allow" else answer.denied_by and answer.denied_by.errno)
    os.close(answers)
    os.close(told)
    asked = [(name, access) for name in VIEW for access in ("r", "rw")]
    assert dict(zip(asked, found, strict=True)) == dict(zip(asked, met, strict=True))


def tried(path: str, access: str) -> str:
    try:
        os.close(os.open(path, os.O_RDWR if access == "rw" else os.O_RDONLY))
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "allow"


@requires("kernel")
def test_a_file_system_mounted_in_a_user_namespace_counts_as_nodev(tmp_path: Path) -> None:
    def prepare() -> None:
        user_namespace_of_root()
        assert libc.unshare(CLONE_NEWNS) == 0
        mount("t", tmp_path, "tmpfs", 0)

    with waiting(prepare) as pid:
        script = f"mknod -m 666 {tmp_path}/n c 1 3"
        subprocess.run(["nsenter", "-t", str(pid), "-m", "sh", "-c", script], check=True)
        for probe in (False, True):
            answer = explain(LiveHost(), pid, str(tmp_path / "n"), probe=probe)
            assert answer.denied_by is not None
            assert answer.denied_by.gate == "nodev"
            assert "user namespace" in answer.denied_by.says
        assert explain(LiveHost(), pid, "/dev/null", probe=True).verdict == "allow"


@requires("kernel")
def test_a_process_in_a_chroot_has_a_mount_all_the_same(tmp_path: Path) -> None:
    os.mknod(tmp_path / "n", 0o20666, os.makedev(1, 3))
    with waiting(lambda: os.chroot(tmp_path)) as pid:
        assert explain(LiveHost(), pid, "/n", probe=True).verdict == "allow"


@requires("kernel")
@pytest.mark.parametrize("path", ["/dev/stdin", "/dev/fd/0", "/proc/self/root/dev/null", "/proc/{pid}/root/dev/null"])
def test_a_magic_link_is_unknown(path: str) -> None:
    for probe in (False, True):
        answer = explain(LiveHost(), os.getpid(), path.format(pid=os.getpid()), probe=probe)
        assert answer.verdict == "unknown"
        assert "it leads through" in (answer.unknown_because or "")


@requires("kernel")
def test_what_a_probe_cannot_answer() -> None:
    answer = explain(LiveHost(), os.getpid(), "/dev/null", "m", probe=True)
    assert answer.probed is not None
    assert answer.probed.verdict == "unknown"
    assert explain(LiveHost(), os.getpid(), "/dev", probe=True).verdict == "deny"
    with waiting(become_nobody) as pid:
        denied = explain(LiveHost(), pid, "/dev/null", "m").denied_by
        assert denied is not None
        assert (denied.by, denied.errno) == ("CAP_MKNOD", "EPERM")


def test_a_seccomp_filter_is_noted(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    maker.add_process(7)
    assert explain(maker.host(), 7, "/dev/nvidia0").notes == ()
    maker.files["/proc/7/status"] = str(maker.files["/proc/7/status"]).replace("Seccomp:\t0", "Seccomp:\t2")
    answer = explain(maker.host(), 7, "/dev/nvidia0")
    assert answer.verdict == "allow"
    assert "seccomp filter" in answer.notes[0]


def test_only_eperm_speaks_of_a_device_filter(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    maker.add_process(7)
    maker.write()
    for name, gate in (("EPERM", "cgroup-v2"), ("EIO", "probe"), ("ELOOP", "path"), ("EACCES", "mode")):
        (tmp_path / "probes.json").write_text(json.dumps({"7": {"/dev/nvidia0": {"rw": name}}}))
        assert verdicts(maker, "/dev/nvidia0") == ("deny", gate, name)


def test_a_driver_that_lacks_the_minor(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    maker.add_process(7)
    for name, major, minor in (("nvidia7", 195, 7), ("nvidia-uvm9", 238, 9), ("mem", 1, 99)):
        maker.add_node(f"/proc/7/root/dev/{name}", major, minor)
    assert verdicts(maker, "/dev/nvidia7") == ("deny", "driver", "ENXIO")
    assert verdicts(maker, "/dev/nvidia-uvm9") == ("deny", "driver", "ENXIO")
    answer = explain(maker.host(), 7, "/dev/mem")
    assert "whether it knows minor 99 is not known" in answer.gates[-1].says


def test_a_hidden_mount_and_a_link_in_a_record(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    maker.add_process(7)
    maker.files["/proc/7/mountinfo"] = (
        "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "2 1 0:40 / /dev/sub rw,nodev - tmpfs hidden rw\n"
        "3 1 0:5 / /dev rw - devtmpfs udev rw\n"
        "4 1 0:41 / /data rw,nodev - tmpfs data rw\n"
    )
    maker.add_node("/proc/7/root/dev/sub/n", 195, 0)
    maker.add_node("/proc/7/root/data/n", 195, 0)
    maker.nodes["/proc/7/root/dev/l"] = {"path": "/proc/7/root/dev/l", "type": "l", "target": "../data/n"}
    assert verdicts(maker, "/dev/sub/n")[0] == "allow"
    assert verdicts(maker, "/dev/l") == ("deny", "nodev", "EACCES")
