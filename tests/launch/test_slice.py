# SPDX-License-Identifier: Apache-2.0
"""What a launch makes above its cgroup, for --slice a/b/new: it goes with the last that lives below it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuiso.apply.calls import Calls
from gpuiso.apply.engine import carry_out
from gpuiso.apply.state import State
from gpuiso.apply.target import find_cgroup
from gpuiso.host.live import LiveHost
from gpuiso.launch import start as starting
from gpuiso.launch.cgroups import Cgroups
from gpuiso.launch.home import Home
from gpuiso.launch.lease import CgroupId
from gpuiso.launch.start import Start
from gpuiso.launch.store import Leases, Who
from tests.apply.world import policy
from tests.children import in_child
from tests.launch.parts import counted, gpus
from tests.launch.test_cgroups import cgroups as cgroups  # the fixture
from tests.launch.test_cgroups import identify, inhabitant
from tests.tiers import requires

pytestmark = requires("kernel")


@pytest.fixture
def leases(cgroups: Cgroups, tmp_path: Path) -> Leases:
    return Leases(cgroups, tmp_path / "leases")


def above(top: Path, *directories: Path) -> tuple[tuple[str, int], ...]:
    return tuple((f"/{path.relative_to(top.parent)}", path.stat().st_ino) for path in directories)


def made(cgroups: Cgroups, top: Path, name: str) -> CgroupId:
    """A cgroup below a/b of the test's own, and those two with it."""
    directory = top / "a" / "b" / name
    directory.mkdir(parents=True)
    return replace(identify(cgroups, directory, top), made=above(top, top / "a", top / "a" / "b"))


def take(leases: Leases, cgroup: CgroupId | None = None) -> Any:
    return leases.take(counted(1, gpus(4)), gpus(4), Who("job", 0, "root", (), cgroup=cgroup))


def test_what_was_made_goes_with_the_lease(cgroups: Cgroups, leases: Leases, tmp_cgroup: Path) -> None:
    held = take(leases)
    held.bind(made(cgroups, tmp_cgroup, "one"))
    held.close()
    assert leases.listing() == ([], [])
    assert not (tmp_cgroup / "a").exists()


@pytest.mark.parametrize("whose", ["cgroup", "process", "later"])
def test_what_is_in_use_or_another_one_by_now_stays(cgroups: Cgroups, tmp_cgroup: Path, whose: str) -> None:
    cgroup = made(cgroups, tmp_cgroup, "one")
    if whose == "process":
        with inhabitant(tmp_cgroup / "a"):
            cgroups.discard(cgroup)
    elif whose == "cgroup":
        (tmp_cgroup / "a" / "other").mkdir()
        cgroups.discard(cgroup)
        assert (tmp_cgroup / "a" / "other").is_dir()
    else:
        for directory in (tmp_cgroup / "a/b/one", tmp_cgroup / "a/b", tmp_cgroup / "a"):
            directory.rmdir()
        (tmp_cgroup / "a").mkdir()
        cgroups.discard(cgroup)
    assert (tmp_cgroup / "a").is_dir()
    assert not (tmp_cgroup / "a" / "b").exists()


@pytest.mark.parametrize("bound", [False, True], ids=["on its way", "bound"])
def test_the_last_that_lives_below_takes_it_away(
    cgroups: Cgroups, leases: Leases, tmp_cgroup: Path, *, bound: bool
) -> None:
    first = take(leases)
    first.bind(made(cgroups, tmp_cgroup, "one"))
    path = f"/{tmp_cgroup.name}/a/b/two"
    second = take(leases, cgroups.planned(str(tmp_cgroup.parent), path))
    (tmp_cgroup / "a/b/two").mkdir()
    if bound:
        second.bind(identify(cgroups, tmp_cgroup / "a/b/two", tmp_cgroup))
    first.close()
    assert len(leases.listing()[0]) == 1
    assert not (tmp_cgroup / "a/b/one").exists()
    assert (tmp_cgroup / "a/b").is_dir()
    if not bound:
        second.bind(identify(cgroups, tmp_cgroup / "a/b/two", tmp_cgroup))
    second.close()
    assert leases.listing() == ([], [])
    assert not (tmp_cgroup / "a").exists()


@pytest.mark.parametrize("vanishes", [False, True], ids=["stays", "vanishes"])
def test_the_launcher_knows_what_it_made(
    cgroups: Cgroups,
    leases: Leases,
    tmp_cgroup: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    vanishes: bool,
) -> None:
    """Of a/b/gpuiso-job only b, if a was there; b may also go between the look and the first step, with its maker."""
    monkeypatch.setattr("gpuiso.apply.state.State.__init__.__defaults__", (tmp_path / "run",))
    (tmp_cgroup / "a").mkdir()
    home_above = f"/{tmp_cgroup.name}/a/b"
    target = find_cgroup(LiveHost(), Calls(), f"{home_above}/gpuiso-job", create=True)
    home = Home("gpuiso-job", str(tmp_cgroup.parent), home_above, target=target)
    start = cast(
        Start, SimpleNamespace(home=home, calls=Calls(), cgroups=cgroups, policy=policy("allow default-nodes"))
    )
    if vanishes:
        (tmp_cgroup / "a/b").mkdir()
        real = carry_out

        def late(*arguments: Any, **options: Any) -> Any:
            monkeypatch.setattr(starting, "carry_out", real)
            (tmp_cgroup / "a/b").rmdir()
            return real(*arguments, **options)

        monkeypatch.setattr(starting, "carry_out", late)

    def enter() -> None:
        held = take(leases)
        cgroup = starting._enter_cgroup(start)
        assert cgroup.made == above(tmp_cgroup, tmp_cgroup / "a" / "b")
        held.bind(cgroup)

    assert in_child(enter) == 0
    assert (tmp_cgroup / "a/b/gpuiso-job").is_dir()
    assert leases.listing() == ([], [])
    assert (tmp_cgroup / "a").is_dir()
    assert not (tmp_cgroup / "a" / "b").exists()
    assert State().interrupted() == []
