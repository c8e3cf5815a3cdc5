# SPDX-License-Identifier: Apache-2.0
"""The gate of device programs against this kernel: what cannot be seen, and what gives way."""

from __future__ import annotations

import os
import signal
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
from tests.tiers import cgroup2_mount, requires

DENY_ALL = "b7000000000000009500000000000000"  # r0 = 0; exit


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
