# SPDX-License-Identifier: Apache-2.0
"""Applying policies to cgroups of the v2 tree."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from gpuiso.apply.applied import load_applied
from gpuiso.apply.engine import carry_out
from gpuiso.apply.plan_cgroup import plan_cgroup
from gpuiso.apply.remove import remove
from gpuiso.apply.show import show
from gpuiso.apply.target import Target, cgroup_path, find_cgroup
from gpuiso.devfilter import insn as op
from gpuiso.devfilter.compile import compile_rules
from gpuiso.devfilter.insn import Insn, pack
from gpuiso.devfilter.owner import GPUISO_NAME
from gpuiso.devfilter.recover import recover
from gpuiso.errors import BadInput, FailedAndUndone, NotFound, NotSupported
from gpuiso.host.device_programs import query_device_programs
from gpuiso.host.live import LiveHost
from gpuiso.kernel import bpf
from gpuiso.policy.parse import parse_rules
from tests.apply.faults import snapshot
from tests.apply.world import World, policy
from tests.tiers import requires

pytestmark = requires("kernel")

GPU = "allow default-nodes\nallow c 195:0 rw\nallow c 195:255 rw\n"


def names(path: Path) -> list[str]:
    return [program.name for program in query_device_programs(str(path), str(path)) or ()]


def find(world: World, *below: str) -> Target:
    return find_cgroup(LiveHost(), world.calls, world.name(*below))


@contextmanager
def stranger(
    cgroup: Path,
    rules: str,
    *,
    flags: int = bpf.BPF_F_ALLOW_MULTI,
    allow: bool = False,
    name: str = "stranger",
    first: tuple[Insn, ...] = (),
) -> Iterator[None]:
    """A program of somebody else at a cgroup; ``first`` are instructions before those of its rules."""
    insns = pack((*first, *compile_rules(parse_rules(rules), default_allow=allow)))
    program = bpf.prog_load(insns, name=name)
    directory = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY)
    bpf.prog_attach(directory, program, flags=flags)
    try:
        yield
    finally:
        bpf.prog_detach(directory, program)
        os.close(directory)
        os.close(program)


def test_the_rules_hold_and_go_again(world: World) -> None:
    before = snapshot(world.top, world.run)
    outcome = world.apply(policy(GPU), "a", "b")
    assert len(outcome.proof.said) == 2
    assert names(world.top / "a" / "b") == ["gpuiso_dev"]
    world.apply(policy("allow c 1:3 rw"), "a", "b")
    assert names(world.top / "a" / "b") == ["gpuiso_dev"]
    target = find_cgroup(LiveHost(), world.calls, world.name("a", "b"))
    assert show(target, state=world.state, calls=world.calls).drift == ()
    assert remove(target, state=world.state, calls=world.calls).remembered
    assert snapshot(world.top, world.run) == before
    with pytest.raises(NotFound, match="no cgroup"):
        find_cgroup(LiveHost(), world.calls, world.name("a", "b"))


def test_strangers_stay_beside_ours(world: World) -> None:
    with stranger(world.top, "deny c 195:1 rwm", allow=True):
        world.apply(policy(GPU))
        assert names(world.top) == ["stranger", "gpuiso_dev"]
        world.apply(policy("allow c 195:0 r"))
        assert names(world.top) == ["stranger", "gpuiso_dev"]
        remove(find(world), state=world.state, calls=world.calls)
        assert names(world.top) == ["stranger"]


def rules_at(path: Path) -> list[str]:
    """The last rule of each program."""
    programs = query_device_programs(str(path), str(path)) or ()
    return [str(recover(program.insns or b"").lines[-1]) for program in programs]


def test_a_stranger_of_the_name_of_ours_stays_where_ours_is_remembered(world: World) -> None:
    world.apply(policy("allow c 195:0 r"))
    with stranger(world.top, "deny c 195:7 rwm", allow=True, name=GPUISO_NAME):
        assert show(find(world), state=world.state, calls=world.calls).drift == ()
        world.apply(policy("allow c 195:1 r"))
        assert sorted(rules_at(world.top)) == ["allow c 195:1 r", "deny c 195:7 rwm"]
        assert remove(find(world), state=world.state, calls=world.calls).remembered
        assert rules_at(world.top) == ["deny c 195:7 rwm"]


def test_a_stranger_of_the_name_of_ours_stays_if_ours_is_never_so(world: World) -> None:
    first = (Insn(op.ALU64 | op.MOV, 6),)
    with stranger(world.top, "deny c 195:7 rwm", allow=True, name=GPUISO_NAME, first=first):
        with pytest.raises(NotFound, match="no rules of gpuiso's"):
            remove(find(world), state=world.state, calls=world.calls)
        world.apply(policy("allow c 195:1 r"))
        assert rules_at(world.top) == ["deny c 195:7 rwm", "allow c 195:1 r"]
        remove(find(world), state=world.state, calls=world.calls)
        assert rules_at(world.top) == ["deny c 195:7 rwm"]


def test_without_a_memory_ours_goes_by_itself(world: World) -> None:
    world.apply(policy("allow c 195:1 r"))
    world.state.policy(find(world).key).unlink()
    assert not remove(find(world), state=world.state, calls=world.calls).remembered
    assert rules_at(world.top) == []


def test_what_a_stranger_denies_is_no_success(world: World) -> None:
    (world.top / "a").mkdir()
    with stranger(world.top, "deny c 195:0 w", allow=True):
        before = snapshot(world.top, world.run)
        words = (
            r"the policy allows c 195:0 w, but program \d+ of foreign at .* denies it; what had been done was undone"
        )
        with pytest.raises(FailedAndUndone, match=words) as failed:
            world.apply(policy(GPU), "a")
        assert failed.value.hint is not None
        assert "--narrower" in failed.value.hint
        assert snapshot(world.top, world.run) == before
        plan = world.plan(policy(GPU), "a")
        assert plan.verification is not None
        narrower = replace(plan, verification=replace(plan.verification, narrower=True))
        proof = carry_out(narrower, state=world.state, calls=world.calls).proof
        assert any("c 195:0 w" in line for line in proof.narrower)


def test_what_narrower_accepted_is_no_drift(world: World) -> None:
    (world.top / "a").mkdir()
    target = find(world, "a")

    def drift() -> tuple[str, ...]:
        return show(target, state=world.state, calls=world.calls).drift

    with stranger(world.top, "deny c 195:0 w", allow=True):
        plan = plan_cgroup(world.calls, target, policy(GPU), narrower=True)
        said = carry_out(plan, state=world.state, calls=world.calls).proof.narrower
        assert [line.partition(",")[0] for line in said] == ["the policy allows c 195:0 w"]
        assert drift() == ()
        with stranger(world.top, "deny c 195:255 r", allow=True):
            assert [line.partition(",")[0] for line in drift()] == ["the policy allows c 195:255 r"]
        assert drift() == ()
    world.apply(policy(GPU), "a")
    with stranger(world.top, "deny c 195:0 w", allow=True):
        assert [line.partition(",")[0] for line in drift()] == ["the policy allows c 195:0 w"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [(0, "attached without BPF_F_ALLOW_MULTI"), (bpf.BPF_F_ALLOW_OVERRIDE, "would switch it off")],
    ids=["alone", "override"],
)
def test_programs_in_the_way(world: World, flags: int, words: str) -> None:
    (world.top / "a").mkdir()
    with stranger(world.top, "deny c 195:1 rwm", flags=flags, allow=True):
        with pytest.raises(NotSupported, match=words):
            world.plan(policy(GPU), "a")
        with pytest.raises(NotSupported, match="attached without BPF_F_ALLOW_MULTI"):
            world.plan(policy(GPU))


def test_bad_targets(world: World, tmp_path: Path) -> None:
    host = LiveHost()
    mount = world.top.parent
    for text, words in (
        ("/", "the root of the cgroup tree"),
        (str(mount), "the root of the cgroup tree"),
        ("a/b", "does not start with /"),
        (f"/{world.top.name}/../x", r"cannot be named with \.\."),
    ):
        with pytest.raises(BadInput, match=words):
            cgroup_path(host, text)
    assert cgroup_path(host, f"{world.top}/a//./b/") == world.name("a", "b")
    with pytest.raises(NotFound, match="no cgroup"):
        find_cgroup(host, world.calls, world.name("nosuch"))
    with pytest.raises(BadInput, match="is a file, not a cgroup"):
        find_cgroup(host, world.calls, world.name("cgroup.procs"))


def test_threaded_cgroups(world: World) -> None:
    (world.top / "t" / "below").mkdir(parents=True)
    (world.top / "t" / "cgroup.type").write_text("threaded")
    world.apply(policy("allow c 1:3 rw"), "t")
    if "hugetlb" in (world.top / "cgroup.controllers").read_text():
        with pytest.raises(NotSupported, match=r"is threaded: hugetlb\.2MB\.max cannot be set there"):
            world.plan(policy("gpuiso: 1\nhugetlb.2MB.max: 4M"), "t")
    with pytest.raises(NotSupported, match="its type is domain invalid"):
        world.plan(policy("allow c 1:3 rw"), "t", "below")
    for directory in (world.top / "t" / "below", world.top / "t"):
        directory.rmdir()


def test_controllers_that_are_not_there(world: World) -> None:
    available = (world.top.parent / "cgroup.controllers").read_text().split()
    missing = next((name for name in ("memory", "misc", "io") if name not in available), None)
    if missing is None:
        pytest.skip("every controller is here")
    text = {"memory": "memory.max: 1G", "misc": 'misc.max: ["a 1"]', "io": 'io.max: ["8:0 rbps=1000"]'}[missing]
    with pytest.raises(NotSupported, match=f"has no {missing} controller"):
        world.plan(policy(f"gpuiso: 1\n{text}"), "a")
    assert [path for path in world.top.iterdir() if path.is_dir()] == []


def test_processes_in_the_way_of_controllers(world: World) -> None:
    if "hugetlb" not in (world.top / "cgroup.controllers").read_text():
        pytest.skip("no controller to enable")
    sleeper = subprocess.Popen(["sleep", "100"])
    try:
        (world.top / "cgroup.procs").write_text(str(sleeper.pid))
        with pytest.raises(FailedAndUndone, match="processes are in that cgroup itself; what had been done was undone"):
            world.apply(policy("gpuiso: 1\nhugetlb.2MB.max: 4M"), "a")
        assert [path for path in world.top.iterdir() if path.is_dir()] == []
    finally:
        sleeper.kill()
        sleeper.wait()


def test_drift_is_seen(world: World) -> None:
    world.apply(policy(GPU), "a")
    target = find(world, "a")
    directory = os.open(world.top / "a", os.O_RDONLY | os.O_DIRECTORY)
    (program,) = query_device_programs(str(world.top / "a"), "a") or ()
    fd = bpf.prog_get_fd_by_id(program.id)
    bpf.prog_detach(directory, fd)
    os.close(fd)
    os.close(directory)
    drift = show(target, state=world.state, calls=world.calls).drift
    assert any("carries 0 programs of gpuiso's" in line for line in drift)
    assert any("would allow" in line for line in drift)


def test_a_new_cgroup_of_the_same_path_has_no_policy(world: World) -> None:
    (world.top / "a").mkdir()
    world.apply(policy(GPU), "a")
    (world.top / "a").rmdir()
    (world.top / "a").mkdir()
    target = find(world, "a")
    assert load_applied(world.state, target.key) is not None
    assert show(target, state=world.state, calls=world.calls).applied is None
    with pytest.raises(NotFound, match="no rules of gpuiso's"):
        remove(target, state=world.state, calls=world.calls)


def test_a_wrong_program_is_found_out(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The verification does not trust the compiler."""
    before = snapshot(world.top, world.run)
    everything = compile_rules((), default_allow=True)
    monkeypatch.setattr("gpuiso.apply.plan_cgroup.to_program", lambda wanted: everything)
    with pytest.raises(FailedAndUndone, match=r"would allow .*, which the policy denies"):
        world.apply(policy(GPU))
    assert snapshot(world.top, world.run) == before
