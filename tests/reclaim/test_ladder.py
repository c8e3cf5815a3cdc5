# SPDX-License-Identifier: Apache-2.0
"""The ladder: each rung only as far as asked, and done when the memory is seen to be back."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from gpuiso.errors import FailedAndUndone, NotSupported, NotUndone, TimedOut
from gpuiso.host.protocol import CommandResult
from gpuiso.reclaim.forecast import Forecast, forecast
from gpuiso.reclaim.ladder import Climbed, Rung, Timing, climb, off_limits
from gpuiso.reclaim.records import Busy
from gpuiso.reclaim.reset import refusals
from gpuiso.reclaim.selection import Candidate
from gpuiso.reclaim.session import Session
from gpuiso.reclaim.take import Interrupted, Options, Recorded
from gpuiso.reclaim.target import Target
from tests.reclaim.test_take import assert_running, works
from tests.reclaim.world import FakeHost, World, alive, make_session

QUICK = Timing(term=0.3, kill=5.0, reset=1.0)


@pytest.fixture
def session(world: World) -> Iterator[Session]:
    session = make_session(world)
    yield session
    session.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuiso.reclaim.ladder._BACK_LIMIT", 0.3)


def no_reset(argv: tuple[str, ...], timeout: float) -> CommandResult:
    raise AssertionError(f"{argv} must not run")


def go(session: Session, until: Rung, *pids: int, yes: bool = False) -> list[Climbed]:
    with ExitStack() as stack:
        targets = [stack.enter_context(Target.open(session.host, pid)) for pid in pids]
        return climb(session, targets, until, Options(lock_timeout=0.2), QUICK, yes=yes, run=no_reset)


def events(session: Session) -> list[tuple[str, str]]:
    assert session.ledger.verify().fault is None
    return [(entry["event"], entry["result"]) for entry in session.ledger.entries()]


def stubborn(world: World, *, ignores_term: bool = False) -> int:
    """A target that cannot be checkpointed."""
    if ignores_term:
        before = signal.signal(signal.SIGTERM, signal.SIG_IGN)  # inherited
        try:
            pid = world.target()
        finally:
            signal.signal(signal.SIGTERM, before)
    else:
        pid = world.target()
    world.knob(pid, "managed-memory")
    return pid


@pytest.mark.parametrize("until", ["checkpoint", "term", "kill"])
def test_the_lossless_rung_is_enough(world: World, session: Session, until: Rung) -> None:
    pid = world.target()
    (done,) = go(session, until, pid)
    assert done.rung == "checkpoint"
    assert alive(pid)
    assert world.memory()[0].used == 0


def test_lossless_or_nothing_by_default(world: World, session: Session) -> None:
    pid = stubborn(world)
    with pytest.raises(FailedAndUndone):
        go(session, "checkpoint", pid)
    assert_running(world, session, pid)


def test_term(world: World, session: Session) -> None:
    pid = stubborn(world)
    (done,) = go(session, "kill", pid)
    assert done.rung == "term"
    assert "CUDA_ERROR_NOT_SUPPORTED" in done.failed["checkpoint"]
    assert not alive(pid)
    assert events(session)[-2:] == [("term", "begun"), ("term", "freed")]
    assert session.records.all() == ()


def test_term_is_not_enough(world: World, session: Session) -> None:
    pid = stubborn(world, ignores_term=True)
    with pytest.raises(TimedOut, match=r"did not end within 0.3 s of SIGTERM"):
        go(session, "term", pid)
    assert works(world, pid)
    (done,) = go(session, "kill", pid)
    assert (done.rung, set(done.failed)) == ("kill", {"checkpoint", "term"})
    assert not alive(pid)


def test_who_interrupts_wants_no_further_rung(world: World, session: Session) -> None:
    pid = world.target(mib=4000)

    def interrupt(progress: object) -> None:
        raise KeyboardInterrupt

    session.notify = interrupt
    with pytest.raises(Interrupted, match="interrupted; it is RUNNING again"):
        go(session, "kill", pid)
    assert_running(world, session, pid)


def test_what_another_gpuiso_works_on_is_left_to_it(world: World, session: Session) -> None:
    pid = world.target()
    with (
        Target.open(session.host, pid) as target,
        session.records.lock(pid, target.start_time),
        pytest.raises(Busy),
    ):
        go(session, "kill", pid)
    assert_running(world, session, pid)


def test_what_is_reclaimed_is_not_killed(world: World, session: Session) -> None:
    pid = world.target()
    go(session, "checkpoint", pid)
    with pytest.raises(Recorded, match="is reclaimed already"):
        go(session, "kill", pid)
    assert alive(pid)


def test_who_gets_no_signal(world: World, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    assert off_limits(session, world.target()) is None
    assert off_limits(session, 1) == "it is the init process"
    monkeypatch.setattr(Target, "send", lambda *_: pytest.fail("it got a signal"))
    with pytest.raises(NotSupported, match="which is left alone; and it gets no signal: it is the init process"):
        go(session, "term", 1)
    assert off_limits(session, os.getpid()) == off_limits(session, os.getppid()) == "it started this gpuiso"
    with subprocess.Popen(["sleep", "60"]) as process:
        assert off_limits(session, process.pid) == "it holds nothing of a GPU"
        with pytest.raises(NotSupported, match=r"uses no CUDA.*gets no signal: it holds nothing of a GPU"):
            go(session, "kill", process.pid)
        assert told(session, process.pid, "kill").steps == ("no signal: it holds nothing of a GPU",)
        assert process.poll() is None
        process.kill()


def test_the_memory_does_not_come_back(world: World, session: Session) -> None:
    pid = stubborn(world)
    memory = session.memory()
    session.memory = lambda: memory
    with pytest.raises(NotUndone, match="ended, and yet its GPU is not free"):
        go(session, "kill", pid)
    assert events(session)[-1] == ("kill", "failed")


def test_each_process_gets_the_rung_that_it_needs(world: World, session: Session) -> None:
    good, bad = world.target(gpu=1), stubborn(world)
    done = go(session, "term", good, bad)
    assert {one.record.pid: one.rung for one in done} == {good: "checkpoint", bad: "term"}
    assert alive(good)
    assert [record.pid for record in session.records.all()] == [good]


def test_a_reset_is_not_agreed_to(world: World, session: Session) -> None:
    pid = stubborn(world)
    other = world.target()
    memory = session.memory()
    session.memory = lambda: memory
    with pytest.raises(NotUndone, match="needs --yes besides --until reset") as caught:
        go(session, "reset", pid)
    assert f"others use it: {other} (python)" in caught.value.message


# Refusals of a reset


def nvidia_smi(host: FakeHost, monkeypatch: pytest.MonkeyPatch, answer: str | None) -> None:
    def command(argv: tuple[str, ...], *, timeout: float = 5.0) -> CommandResult | None:
        assert "--query-gpu=display_active,display_mode" in argv
        return None if answer is None else CommandResult(argv, 0, answer, "", 0.0, timed_out=False)

    monkeypatch.setattr(host, "command", command)


def test_a_reset_may_go_ahead(world: World, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    host = world.host()
    nvidia_smi(host, monkeypatch, "Disabled, Disabled\n")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    gpu = dataclasses.replace(session.inventory.of("nvidia")[0], mig_enabled=False, mig_devices=())
    assert refusals(host, gpu, [], yes=True) == []


@pytest.mark.parametrize(
    ("changes", "display", "says"),
    [
        ({}, "Enabled, Enabled\n", "a display hangs on it"),
        ({}, "Disabled, Enabled\n", "a display hangs on it"),
        ({}, None, "display hangs on it is not known"),
        ({"mig_enabled": True}, "Disabled, Disabled\n", "partitioned"),
        ({"mig_enabled": None}, "Disabled, Disabled\n", "is not known"),
        ({"vendor": "amd"}, None, "neighbours"),
    ],
)
def test_a_reset_is_refused(
    world: World,
    session: Session,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, object],
    display: str | None,
    says: str,
) -> None:
    host = world.host()
    nvidia_smi(host, monkeypatch, display)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    gpu = dataclasses.replace(session.inventory.of("nvidia")[0], **{"mig_enabled": False, **changes})  # type: ignore[arg-type]
    (why,) = refusals(host, gpu, [], yes=True)
    assert says in why


def test_a_reset_takes_nobody_along(world: World, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    host = world.host()
    nvidia_smi(host, monkeypatch, "Disabled, Disabled\n")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    gpu = dataclasses.replace(session.inventory.of("nvidia")[0], mig_enabled=False)
    daemon = Candidate(812, "nvidia-persiste", "root", (str(gpu.uuid),), {})
    assert refusals(host, gpu, [daemon], yes=False) == [
        "a reset was not agreed to: it needs --yes besides --until reset",
        "a reset needs root",
        "others use it: 812 (nvidia-persiste)",
    ]


# Dry run


def told(session: Session, pid: int, until: Rung, *, scope_only: bool = False) -> Forecast:
    with Target.open(session.host, pid) as target:
        return forecast(session, target, until, scope_only=scope_only, yes=False)


def test_a_forecast_changes_nothing(world: World, session: Session) -> None:
    pid, other = world.target(gpu=1), world.target(gpu=1)
    found = told(session, pid, "kill")
    assert [step.split(":")[0] for step in found.steps] == [
        "lock",
        "checkpoint",
        "verify",
        "close GPU 1",
        "if that fails",
        "if that fails",
    ]
    assert [who.pid for who in found.sharers] == [other]
    assert_running(world, session, pid)
    assert not session.ledger.path.exists()


def test_a_forecast_tells_every_reason(world: World, session: Session) -> None:
    session.inventory = dataclasses.replace(session.inventory, driver_version="610.57.04")
    (world.directory / "meminfo").write_text("MemAvailable: 1000 kB\n")
    found = told(session, world.target(), "term")
    assert [reason.kind for reason in found.reasons] == ["driver-bug", "host-memory"]
    assert [step.split(" to ")[0] for step in found.steps] == ["if that fails: SIGTERM"]


def test_a_forecast_of_a_reset(world: World, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(session.host, FakeHost)
    nvidia_smi(session.host, monkeypatch, "Disabled, Disabled\n")
    found = told(session, world.target(), "reset")
    assert f"nvidia-smi --gpu-reset --id {world.uuids[0]}; refused: a reset was not agreed to" in found.steps[-1]
