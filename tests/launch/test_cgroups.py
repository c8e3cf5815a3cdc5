# SPDX-License-Identifier: Apache-2.0
"""Cgroups that leases are bound to, the proof inside one, and the keeper of gpu.max, in the kernel."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuiso.apply.calls import Calls
from gpuiso.apply.state import State
from gpuiso.devfilter.compile import compile_rules
from gpuiso.devfilter.insn import pack
from gpuiso.errors import FailedAndUndone, NotSupported
from gpuiso.kernel.bpf import prog_attach, prog_load
from gpuiso.kernel.clone3 import clone3
from gpuiso.launch.cgroups import Cgroups
from gpuiso.launch.keeper import Keeper
from gpuiso.launch.lease import CgroupId
from gpuiso.launch.prove import prove
from gpuiso.launch.store import Leases, Who
from gpuiso.policy.limits import GpuMax
from gpuiso.policy.parse import parse_rules
from tests.launch.parts import counted, gpus
from tests.tiers import requires

pytestmark = requires("kernel")


@pytest.fixture
def cgroups(tmp_path: Path) -> Cgroups:
    return Cgroups(Calls(), "boot", State(tmp_path / "state"))


def identify(cgroups: Cgroups, directory: Path, top: Path, *, ours: bool = True) -> CgroupId:
    return cgroups.identify(str(top.parent), f"/{directory.relative_to(top.parent)}", ours=ours)


@contextmanager
def inhabitant(directory: Path) -> Iterator[int]:
    """A process in a cgroup."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    pid, pidfd = clone3(cgroup_fd=fd)
    if pid == 0:
        time.sleep(600)
        os._exit(0)
    os.close(fd)
    os.close(pidfd)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_populated_as_long_as_somebody_lives_there(cgroups: Cgroups, tmp_cgroup: Path) -> None:
    inner = tmp_cgroup / "run" / "inner"
    inner.mkdir(parents=True)
    cgroup = identify(cgroups, tmp_cgroup / "run", tmp_cgroup)
    assert not cgroups.populated(cgroup)
    with inhabitant(inner):
        assert cgroups.populated(cgroup)
        cgroups.discard(cgroup)
        assert inner.is_dir()
    assert not cgroups.populated(cgroup)
    cgroups.discard(cgroup)
    assert not (tmp_cgroup / "run").exists()


def test_a_later_cgroup_of_that_path_is_another(cgroups: Cgroups, tmp_cgroup: Path) -> None:
    directory = tmp_cgroup / "run"
    directory.mkdir()
    first = identify(cgroups, directory, tmp_cgroup)
    directory.rmdir()
    directory.mkdir()
    with inhabitant(directory):
        assert not cgroups.populated(first)
        assert cgroups.populated(identify(cgroups, directory, tmp_cgroup))
    cgroups.discard(first)
    assert directory.is_dir()


def test_one_of_an_earlier_boot_is_another(cgroups: Cgroups, tmp_cgroup: Path, tmp_path: Path) -> None:
    cgroup = identify(cgroups, tmp_cgroup, tmp_cgroup)
    with inhabitant(tmp_cgroup):
        assert not Cgroups(Calls(), "next boot", State(tmp_path)).populated(cgroup)


def test_what_a_launcher_left_that_died_before_it_went_in(cgroups: Cgroups, tmp_cgroup: Path, tmp_path: Path) -> None:
    leases = Leases(cgroups, tmp_path / "leases")
    planned = cgroups.planned(str(tmp_cgroup.parent), f"/{tmp_cgroup.name}/run")
    held = leases.take(counted(1, gpus(1)), gpus(1), Who("job", 0, "root", (), cgroup=planned))
    (tmp_cgroup / "run").mkdir()
    assert len(leases.listing()[0]) == 1
    held.close()
    assert leases.listing() == ([], [])
    assert not (tmp_cgroup / "run").exists()


@pytest.mark.parametrize(
    ("rules", "says"),
    [
        ("allow a\ndeny c 195:1 rwm", None),
        ("allow a", "/dev/nvidia1 is not denied: the programs of the cgroup say allow"),
        ("allow a\ndeny c 195:1 rw", "/dev/nvidia1 is not denied: the programs of the cgroup say allow"),
        ("allow a\ndeny c 195:* rwm", "/dev/nvidia0 is denied at "),
    ],
)
def test_the_proof(cgroups: Cgroups, tmp_cgroup: Path, rules: str, says: str | None) -> None:
    directory = os.open(tmp_cgroup, os.O_RDONLY | os.O_DIRECTORY)
    program = prog_load(pack(compile_rules(parse_rules(rules))), name="gpuiso_dev")
    prog_attach(directory, program)
    os.close(program)
    first, second = gpus(2)
    cgroup = identify(cgroups, tmp_cgroup, tmp_cgroup)
    readable, writable = os.pipe()
    pid, pidfd = clone3(cgroup_fd=directory)
    if pid == 0:
        try:
            prove(cgroup, [first], [second], ())
        except FailedAndUndone as error:
            os.write(writable, error.message.encode())
        finally:
            os._exit(0)
    for fd in (writable, pidfd, directory):
        os.close(fd)
    os.waitpid(pid, 0)
    with open(readable) as file:
        said = file.read()
    assert said.startswith(says) if says else said == ""


def test_the_keeper_ends_with_the_workload(cgroups: Cgroups, tmp_cgroup: Path, tmp_path: Path) -> None:
    """It also takes the lease and the cgroup away. What it does to hold the limit is the governor's own test."""
    leases = Leases(cgroups, tmp_path / "leases")
    held = leases.take(counted(1, gpus(1)), gpus(1), Who("job", 0, "root", ()))
    directory = tmp_cgroup / "run"
    directory.mkdir()
    cgroup = identify(cgroups, directory, tmp_cgroup)
    keeper = Keeper(GpuMax(50000), leases, cgroups)
    with inhabitant(directory):
        held.bind(cgroup)
        held.close()
        keeper.hold(cgroup)
        assert leases.directory.joinpath("1.lease").exists()
    limit = time.monotonic() + 20
    while directory.exists():
        assert time.monotonic() < limit, "the keeper did not see that the workload ended"
        time.sleep(0.05)
    assert not leases.directory.joinpath("1.lease").exists()


def test_a_keeper_that_cannot_hold_says_so(cgroups: Cgroups, tmp_cgroup: Path, tmp_path: Path) -> None:
    keeper = Keeper(GpuMax(500, 1000), Leases(cgroups, tmp_path / "leases"), cgroups)
    with pytest.raises(NotSupported, match="cannot be held by freezing"):
        keeper.hold(identify(cgroups, tmp_cgroup, tmp_cgroup))
