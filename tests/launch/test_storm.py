# SPDX-License-Identifier: Apache-2.0
"""Leases under load: no GPU twice, none leaked, the order of arrival kept, whoever is killed whenever."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from itertools import pairwise
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from gpuiso.apply.calls import Calls
from gpuiso.apply.state import State
from gpuiso.errors import BadInput, NotFound
from gpuiso.launch.cgroups import Cgroups
from gpuiso.launch.lease import CgroupId
from gpuiso.launch.store import Held, Leases, Who
from tests.launch.parts import counted, gpus
from tests.launch.storm import FileCgroups, Storm, storm
from tests.tiers import requires

LAUNCHES, AT_ONCE, KILLED = 500, 32, 0.1
UNITS = gpus(8)


def check(found: Storm, leases: Leases) -> None:
    assert found.failures == []
    assert found.killed > LAUNCHES * KILLED / 3
    assert len(found.granted) >= LAUNCHES - found.killed
    late = [(one, other) for one, other in pairwise(found.granted) if one[0] > other[0]]
    assert late == [], "somebody was served before one who came earlier"
    assert leases.listing() == ([], [])
    assert sorted(path.name for path in leases.directory.iterdir()) == ["lock", "sequence"]


def test_five_hundred_launches(tmp_path: Path) -> None:
    place = tmp_path / "cgroups"
    place.mkdir()
    cgroups = FileCgroups(place)
    leases = Leases(cgroups, tmp_path / "leases")
    found = storm(leases, UNITS, tmp_path, cgroups.enter, launches=LAUNCHES, at_once=AT_ONCE, kill=KILLED)
    check(found, leases)
    # One killed between these two leaves an empty one that no lease names.
    assert len(list(place.iterdir())) <= 2


@requires("kernel")
def test_five_hundred_launches_in_cgroups(tmp_path: Path, tmp_cgroup: Path) -> None:
    mount, top = str(tmp_cgroup.parent), tmp_cgroup.name
    cgroups = Cgroups(Calls(), "boot", State(tmp_path / "state"))
    leases = Leases(cgroups, tmp_path / "leases")

    def enter(number: int, held: Held) -> CgroupId:
        directory = tmp_cgroup / f"run-{number}"
        directory.mkdir()
        # Bound before it is entered, so that a killed launcher's empty cgroup is known and removed.
        cgroup = cgroups.identify(mount, f"/{top}/{directory.name}", ours=True)
        held.bind(cgroup)
        (directory / "cgroup.procs").write_text(str(os.getpid()))
        return cgroup

    found = storm(leases, UNITS, tmp_path, enter, launches=LAUNCHES, at_once=AT_ONCE, kill=KILLED, seed=2)
    check(found, leases)
    left = [path for path in tmp_cgroup.iterdir() if path.is_dir()]
    assert len(left) <= 2
    assert all("populated 0" in (path / "cgroup.events").read_text() for path in left)


def _reads_then_takes(barrier: Barrier, witness: str, answers: multiprocessing.SimpleQueue[int]) -> None:
    """What launchers without leases do: look which GPU is free, then begin to use it."""
    free = next(n for n in range(8) if not os.path.exists(f"{witness}-{n}"))
    barrier.wait()
    Path(f"{witness}-{free}").touch()
    answers.put(free)


def _leases(barrier: Barrier, directory: str, answers: multiprocessing.SimpleQueue[int]) -> None:
    place = Path(directory)
    barrier.wait()
    held = Leases(FileCgroups(place), place / "leases").take(counted(1, UNITS), UNITS, Who("job", 0, "root", ("job",)))
    answers.put(int(held.lease.units[0][0].removeprefix("GPU-")))
    barrier.wait()


@pytest.mark.parametrize(("launcher", "raced"), [(_reads_then_takes, True), (_leases, False)])
def test_the_race(tmp_path: Path, launcher: Callable[..., None], raced: bool) -> None:
    """Two that look at the same moment both find GPU 0 free; two that lease never get the same one."""
    context = multiprocessing.get_context("fork")
    for number in range(5):
        place = tmp_path / str(number)
        place.mkdir()
        barrier, answers = context.Barrier(2, timeout=30), context.SimpleQueue()
        argument = str(place if launcher is _leases else place / "gpu")
        processes = [context.Process(target=launcher, args=(barrier, argument, answers)) for _ in range(2)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        assert [process.exitcode for process in processes] == [0, 0]
        got = [answers.get() for _ in processes]
        assert (got[0] == got[1]) is raced


def test_the_lock_of_a_dead_waiter_is_gone(tmp_path: Path) -> None:
    """One who waits for all GPUs is killed: those behind are not held up by that."""
    cgroups = FileCgroups(tmp_path)
    leases = Leases(cgroups, tmp_path / "leases")
    held = leases.take(counted(1, UNITS), UNITS, Who("first", 0, "root", ()))
    waiter = os.fork()
    if waiter == 0:
        try:
            leases.take(counted(8, UNITS), UNITS, Who("greedy", 0, "root", ()), wait=60)
        finally:
            os._exit(0)
    while not leases.listing()[1]:
        pass
    with pytest.raises(NotFound, match="waited for by an earlier request"):
        leases.take(counted(1, UNITS), UNITS, Who("late", 0, "root", ()))
    os.kill(waiter, 9)
    os.waitpid(waiter, 0)
    leases.take(counted(1, UNITS), UNITS, Who("late", 0, "root", ())).release()
    held.release()
    assert leases.listing() == ([], [])


def test_a_damaged_lease_is_named_and_its_gpus_are_given_to_nobody(tmp_path: Path) -> None:
    leases = Leases(FileCgroups(tmp_path), tmp_path / "leases")
    leases.take(counted(1, UNITS), UNITS, Who("first", 0, "root", ()))
    path = tmp_path / "leases" / "1.lease"
    path.write_text("garbage")
    for look in (leases.listing, lambda: leases.take(counted(1, UNITS), UNITS, Who("second", 0, "root", ()))):
        with pytest.raises(BadInput, match=r"1\.lease: not a lease: ") as caught:
            look()
        assert "remove the file" in str(caught.value.hint)
    assert path.read_text() == "garbage"
    path.unlink()
    assert leases.listing() == ([], [])


def test_a_launcher_that_died_before_it_was_granted_anything(tmp_path: Path) -> None:
    leases = Leases(FileCgroups(tmp_path), tmp_path / "leases")
    leases.directory.mkdir()
    (leases.directory / "1.lease").write_bytes(b"")
    assert leases.listing() == ([], [])
    assert not (leases.directory / "1.lease").exists()
