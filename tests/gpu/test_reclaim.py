# SPDX-License-Identifier: Apache-2.0
"""Taking real GPUs from real processes, and giving them back with their data."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest

from gpuiso.devfilter.compile import compile_rules
from gpuiso.devfilter.insn import pack
from gpuiso.errors import FailedAndUndone, GpuisoError, NotSupported
from gpuiso.gpu.model import Inventory
from gpuiso.kernel.bpf import prog_attach, prog_detach, prog_load
from gpuiso.reclaim.cuda import ProcessState
from gpuiso.reclaim.gate import deny_rules
from gpuiso.reclaim.huge_pages import SETTING, HugePages
from gpuiso.reclaim.ladder import Timing, climb
from gpuiso.reclaim.recover import recover
from gpuiso.reclaim.session import Progress, Session
from gpuiso.reclaim.take import Options, look
from gpuiso.reclaim.target import Target, TargetEnded
from tests.gpu.reclaiming import (
    Job,
    cuda_job,
    held_nodes,
    open_session,
    reclaim,
    restore,
    torch_job,
    wait_until,
)
from tests.support import REPOSITORY
from tests.tiers import requires

pytestmark = requires("gpu")

Property = Callable[[str, object], None]
NOISE = 64 << 20  # bytes

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no PyTorch here")


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    with open_session(tmp_path) as session:
        yield session


def used(session: Session) -> list[int]:
    """Bytes used on each GPU."""
    return [gpu.used for gpu in session.memory()]


def assert_no_gpu(session: Session, pid: int) -> None:
    """That a process has nothing of any GPU, by whatever can be looked at."""
    assert held_nodes(pid) == set()
    assert [gpu.uuid for gpu in session.memory() if pid in gpu.processes] == []


def assert_as_before(session: Session, job: Job, checksum: str) -> None:
    assert session.helper.state(job.pid) == (0, ProcessState.RUNNING)
    assert job.ask("sum") == checksum
    assert job.goes_on()
    assert session.records.all() == ()
    assert session.ledger.verify().fault is None


def times(seconds: dict[str, float], driver: tuple[str, ...]) -> str:
    """The phases, and what is ours of the whole in per cent of the driver's own calls."""
    own = sum(seconds[name] for name in driver)
    phases = ", ".join(f"{name} {1000 * value:.1f} ms" for name, value in seconds.items())
    return f"{phases} (ours: {100 * (seconds['whole'] - own) / own:.1f} %)"


@needs_torch
@pytest.mark.parametrize("gib", [1, 8, 32])
def test_pytorch(gib: int, session: Session, record_property: Property) -> None:
    """Reclaim; another job takes the whole GPU; restore; the training goes on with its data."""
    empty = used(session)
    told: list[Progress] = []
    session.notify = told.append
    with torch_job(gib) as job:
        checksum = job.ask("sum")
        assert job.goes_on()
        (taken,) = reclaim(session, job.pid)
        assert_no_gpu(session, job.pid)
        assert all(now <= before + NOISE for now, before in zip(used(session), empty, strict=True))
        free = session.memory()[0].total - session.memory()[0].used
        with cuda_job((free >> 20) - 1024) as other:
            assert int(other.ask("step")) == 1
            with pytest.raises(GpuisoError, match="are needed"):
                restore(session, job.pid)
        wait_until(lambda: used(session)[0] <= empty[0] + NOISE, pause=0.05)
        (given,) = restore(session, job.pid)
        assert_as_before(session, job, checksum)
    rate = (taken.record.footprint or 0) / taken.seconds["checkpoint"] / 1e9
    back = (taken.record.footprint or 0) / given.seconds["restore"] / 1e9
    seen = max((progress.moved for progress in told if progress.phase == "checkpoint"), default=0)
    record_property("note", f"reclaim {times(taken.seconds, ('lock', 'checkpoint'))}, {rate:.2f} GB/s")
    record_property("note", f"restore {times(given.seconds, ('restore', 'unlock'))}, {back:.2f} GB/s")
    record_property("note", f"progress seen up to {seen >> 20} of {(taken.record.footprint or 0) >> 20} MiB")


@needs_torch
def test_the_other_way_is_to_start_again(record_property: Property) -> None:
    """What a reclaim and a restore save: kill, restart, reload."""
    started = time.monotonic()
    with torch_job(8) as job:
        assert job.ask("step")
        record_property("note", f"start and load 8 GiB: {time.monotonic() - started:.2f} s")


def test_onto_another_gpu(session: Session, two_gpus: Inventory, record_property: Property) -> None:
    first, second = (str(gpu.uuid) for gpu in two_gpus.of("nvidia")[:2])
    with cuda_job(2048) as job:
        checksum = job.ask("sum")
        (taken,) = reclaim(session, job.pid)
        assert taken.record.gpus == (first,)
        (given,) = restore(session, job.pid, moves={first: second})
        assert used(session)[1] > 2048 << 20
        assert used(session)[0] < 2048 << 20
        assert_as_before(session, job, checksum)
        reclaim(session, job.pid)
        restore(session, job.pid, moves={second: first})
        assert used(session)[0] > 2048 << 20
        assert_as_before(session, job, checksum)
    record_property("note", f"moved: {times(given.seconds, ('restore', 'unlock'))}")


def test_two_at_once(session: Session, record_property: Property) -> None:
    empty = used(session)
    with cuda_job(2048) as one, cuda_job(1024) as two:
        sums = [job.ask("sum") for job in (one, two)]
        taken = reclaim(session, one.pid, two.pid)
        assert all(now <= before + NOISE for now, before in zip(used(session), empty, strict=True))
        for job in (one, two):
            assert_no_gpu(session, job.pid)
        restore(session, one.pid, two.pid)
        for job, checksum in zip((one, two), sums, strict=True):
            assert_as_before(session, job, checksum)
    record_property("note", f"whole {taken[0].seconds['whole']:.2f} s for both")


def test_frozen_meanwhile(session: Session, record_property: Property) -> None:
    with cuda_job(1024) as job:
        checksum = job.ask("sum")
        reclaim(session, job.pid, options=Options(freeze=True))
        assert_no_gpu(session, job.pid)
        (given,) = restore(session, job.pid)
        assert_as_before(session, job, checksum)
    record_property("note", f"thaw and open {1000 * given.seconds['open']:.1f} ms")


def test_rules_deny_the_restore(session: Session, tmp_cgroup: Path, record_property: Property) -> None:
    """Somebody else's rules above: refused, data whole; allowed again, it works."""
    program = prog_load(pack(compile_rules(deny_rules(session.inventory.of("nvidia")), default_allow=True)))
    directory = os.open(tmp_cgroup, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with cuda_job(1024) as job:
            checksum = job.ask("sum")
            (tmp_cgroup / "cgroup.procs").write_text(str(job.pid))
            reclaim(session, job.pid)
            prog_attach(directory, program)
            with pytest.raises(FailedAndUndone, match=r"CUDA_ERROR_(NO_DEVICE|NOT_SUPPORTED)") as refused:
                restore(session, job.pid)
            assert "stays reclaimed, its data whole" in refused.value.message
            assert_no_gpu(session, job.pid)
            assert session.helper.state(job.pid) == (0, ProcessState.CHECKPOINTED)
            prog_detach(directory, program)
            restore(session, job.pid)
            assert_as_before(session, job, checksum)
            assert (tmp_cgroup / "cgroup.procs").read_text().split() == [str(job.pid)]
            (tmp_cgroup.parent / "cgroup.procs").write_text(str(job.pid))
    finally:
        os.close(program)
        os.close(directory)
    record_property("note", refused.value.message)


def test_managed_memory(session: Session, record_property: Property) -> None:
    with cuda_job(512, "managed") as job:
        checksum = job.ask("sum")
        with pytest.raises(FailedAndUndone, match=r"CUDA_ERROR_NOT_SUPPORTED.*RUNNING again") as refused:
            reclaim(session, job.pid)
        assert_as_before(session, job, checksum)
    record_property("note", refused.value.message)


def test_a_kernel_that_never_ends(session: Session, record_property: Property) -> None:
    empty = used(session)
    with cuda_job(512, "endless") as job:
        with pytest.raises(FailedAndUndone, match=r"CUDA_ERROR_NOT_READY.*RUNNING again"):
            reclaim(session, job.pid, options=Options(lock_timeout=1.0))
        assert not job.ended()
        with Target.open(session.host, job.pid) as target:
            options, timing = Options(lock_timeout=0.5), Timing(term=10.0, kill=20.0)
            (done,) = climb(session, [target], "kill", options, timing)
        assert job.ended()
        wait_until(lambda: used(session)[0] <= empty[0] + NOISE, pause=0.05)
    record_property("note", f"{done.rung} after {sum(done.seconds.values()):.2f} s; {done.failed}")


def test_no_cuda(session: Session) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            with pytest.raises(NotSupported, match="uses no CUDA"):
                reclaim(session, process.pid)
        finally:
            process.kill()


def test_host_memory_is_too_small(session: Session, tmp_cgroup: Path, record_property: Property) -> None:
    root = tmp_cgroup.parent
    if "memory" not in (root / "cgroup.controllers").read_text().split():
        pytest.skip("cgroup v2 has no memory controller here")
    (root / "cgroup.subtree_control").write_text("+memory")
    with cuda_job(2048) as job:
        checksum = job.ask("sum")
        (tmp_cgroup / "cgroup.procs").write_text(str(job.pid))
        (tmp_cgroup / "memory.max").write_text(str(1 << 30))
        with pytest.raises(NotSupported, match=r"memory\.max leaves") as refused:
            reclaim(session, job.pid)
        assert_as_before(session, job, checksum)
        (root / "cgroup.procs").write_text(str(job.pid))
    record_property("note", refused.value.message)


@pytest.mark.parametrize("phase", ["lock", "checkpoint", "reclaimed", "restore"])
def test_the_process_dies(phase: str, session: Session, record_property: Property) -> None:
    empty = used(session)
    with cuda_job(4096, "endless" if phase == "lock" else "") as job:

        def notify(progress: Progress) -> None:
            if progress.phase == phase and progress.seconds > 0.2:
                job.kill()

        session.notify = notify
        if phase == "lock":
            threading.Timer(0.5, job.kill).start()
            with pytest.raises(TargetEnded):
                reclaim(session, job.pid, options=Options(lock_timeout=5.0))
        elif phase == "checkpoint":
            with pytest.raises(TargetEnded):
                reclaim(session, job.pid)
        else:
            reclaim(session, job.pid)
            if phase == "reclaimed":
                job.kill()
                wait_until(job.ended)
                assert "ended while it was reclaimed" in recover(session)[0]
            else:
                with pytest.raises(TargetEnded):
                    restore(session, job.pid)
        wait_until(job.ended)
        assert session.records.all() == ()
        wait_until(lambda: used(session)[0] <= empty[0] + NOISE, pause=0.05)
    results = [(entry["event"], entry["result"]) for entry in session.ledger.entries()]
    record_property("note", str(results[-1]))


@pytest.mark.parametrize("phase", ["lock", "checkpoint", "close", "open", "restore"])
def test_gpuiso_dies(phase: str, session: Session, tmp_path: Path, record_property: Property) -> None:
    """kill -9 of gpuiso at a moment; its helper undoes what it can, and recover the rest."""
    with ExitStack() as stack:
        job = stack.enter_context(cuda_job(1024))
        checksum = job.ask("sum")
        restoring = phase in ("open", "restore")
        if restoring:
            reclaim(session, job.pid)
        verb = "restore" if restoring else "reclaim"
        argv = [sys.executable, "-m", "tests.gpu.reclaiming", str(tmp_path), verb, str(job.pid)]
        client = subprocess.Popen(argv, cwd=REPOSITORY, stderr=subprocess.DEVNULL)
        stack.callback(client.wait)
        stack.callback(client.kill)
        times = [time.monotonic()]
        _wait_for(phase, session, job, client)
        times.append(time.monotonic())
        client.kill()
        assert client.wait() == -9
        wait_until(lambda: _helpers() <= {session.helper.pid}, pause=0.05)
        times.append(time.monotonic())
        left = [record.phase for record in session.records.all()]
        state = session.helper.state(job.pid)[1]
        done = recover(session)
        times.append(time.monotonic())
        assert_as_before(session, job, checksum)
    spent = ", ".join(f"{after - before:.1f}" for before, after in pairwise(times))
    found = f"{left}, {state.name if state is not None else '?'}"
    record_property("note", f"found {found}; {'; '.join(done)}; s to the kill, of the helper, of recover: {spent}")


def _wait_for(phase: str, session: Session, job: Job, client: subprocess.Popen[bytes]) -> None:
    size = _resident(job.pid)

    def reached() -> bool:
        assert client.poll() is None, "it ended before it could be killed"
        if phase == "lock":
            return bool(session.records.all())
        if phase == "checkpoint":
            return _resident(job.pid) > size + (256 << 20)
        if phase == "close":
            return not held_nodes(job.pid)
        if phase == "open":
            return [record.phase for record in session.records.all()] == ["restoring"]
        return bool(held_nodes(job.pid))

    wait_until(reached)


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _helpers() -> set[int]:
    """The processes that make driver calls for some gpuiso."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"cuda_child.py" in path.read_bytes():
                found.add(int(path.parent.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


@pytest.mark.skipif(not os.access(SETTING, os.W_OK), reason="transparent_hugepage cannot be set here")
def test_huge_pages(session: Session, tmp_path: Path, record_property: Property) -> None:
    pages = HugePages(session.host, directory=tmp_path / "run")
    before = pages.current()
    seconds = []
    with cuda_job(4096) as job:
        checksum = job.ask("sum")
        for options in (Options(), Options(huge_pages=pages)):
            (taken,) = reclaim(session, job.pid, options=options)
            seconds.append(taken.seconds["checkpoint"])
            restore(session, job.pid)
        assert_as_before(session, job, checksum)
    assert pages.current() == before
    record_property("note", f"4 GiB: {seconds[0]:.2f} s with {before}, {seconds[1]:.2f} s with always")


def test_the_command(record_property: Property) -> None:
    """As a user runs it, with its own files under /run/gpuiso."""
    with cuda_job(1024) as job:
        checksum = job.ask("sum")
        seconds = []
        for verb in (["reclaim", "--dry-run"], ["reclaim"], ["restore"]):
            started = time.monotonic()
            argv = [sys.executable, "-m", "gpuiso", verb[0], "--pid", str(job.pid), "--json", *verb[1:]]
            done = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=120)
            seconds.append(time.monotonic() - started)
            assert done.returncode == 0, done.stdout + done.stderr
            assert json.loads(done.stdout)["processes"][0]["pid"] == job.pid
        assert job.ask("sum") == checksum
    record_property("note", "dry run {:.2f} s, reclaim {:.2f} s, restore {:.2f} s".format(*seconds))


def test_nothing_speaks_against_it(session: Session, record_property: Property) -> None:
    """The preflight of a healthy job, and what it costs; what it says of each thing that is wrong is a unit test."""
    with cuda_job(512) as job, Target.open(session.host, job.pid) as target:
        assert session.helper.version >= 12080
        started = time.monotonic()
        case, reasons, unknown = look(session, target)
        seconds = time.monotonic() - started
        assert reasons == ()
        bug = dataclasses.replace(session.inventory, driver_version="610.57.04")
        session.inventory = bug
        assert [reason.kind for reason in look(session, target)[1]] == ["driver-bug"]
    held = {uuid: (size or 0) >> 20 for uuid, size in (case.usage.memory or {}).items()}
    record_property("note", f"{1000 * seconds:.0f} ms; holds {held} MiB, {dict(case.usage.descriptors)}; {unknown}")
