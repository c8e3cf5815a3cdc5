# SPDX-License-Identifier: Apache-2.0
"""Rules are replaced a thousand times under eight threads that open devices all the time."""

from __future__ import annotations

import mmap
import os
import signal
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from gpuiso.apply.engine import carry_out
from gpuiso.kernel.clone3 import clone3
from tests.apply.world import World, policy
from tests.tiers import requires

pytestmark = requires("kernel")

THREADS = 8
REPLACEMENTS = 1000
ALWAYS, NEVER, NOW_AND_THEN = ("/dev/null", "/dev/zero"), ("/dev/full", "/dev/urandom"), ("/dev/random",)
RULES = (
    "allow c 1:3 rw\nallow c 1:5 rw\nallow c 195:* rw\n",
    "deny c 1:7 rwm\nallow c 1:* rw\ndeny c 1:7 rwm\ndeny c 1:9 rw\n",
    "allow c 1:3 rwm\nallow c 1:5 rwm\nallow c 1:8 r\n",
)
_COUNTS = struct.Struct("=QQQQ")


def open_all_the_time(shared: mmap.mmap, slot: int) -> None:
    """Counts opens of what is always allowed, those that failed, opens of what is never allowed, those that did not."""
    good = bad = refused = let_in = 0
    while not shared[0]:
        for path in (*ALWAYS, *NEVER, *NOW_AND_THEN):
            try:
                os.close(os.open(path, os.O_RDWR if path not in NOW_AND_THEN else os.O_RDONLY))
            except PermissionError:
                bad += path in ALWAYS
                refused += path in NEVER
            else:
                good += path in ALWAYS
                let_in += path in NEVER
        shared[slot : slot + _COUNTS.size] = _COUNTS.pack(good, bad, refused, let_in)


@contextmanager
def hammered(cgroup: Path) -> Iterator[mmap.mmap]:
    """A child with eight threads inside the cgroup."""
    shared = mmap.mmap(-1, mmap.PAGESIZE)
    directory = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY)
    pid, pidfd = clone3(cgroup_fd=directory)
    if pid == 0:
        try:
            slots = [64 + _COUNTS.size * number for number in range(THREADS)]
            threads = [threading.Thread(target=open_all_the_time, args=(shared, slot)) for slot in slots]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            os._exit(0)
    os.close(pidfd)
    os.close(directory)
    try:
        yield shared
        shared[0] = 1
        assert os.waitpid(pid, 0)[1] == 0
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        raise


def test_no_denied_open_succeeds_and_no_allowed_open_fails(world: World) -> None:
    world.apply(policy(RULES[0]), "job")
    plans = [world.plan(policy(rules), "job") for rules in RULES]
    with hammered(world.top / "job") as shared:
        for number in range(REPLACEMENTS):
            plan = plans[number % len(plans)]
            # Every 50th is verified from inside as well.
            wanted = plan if number % 50 == 0 else replace(plan, verification=None)
            carry_out(wanted, state=world.state, calls=world.calls)
        counts = [_COUNTS.unpack_from(shared, 64 + _COUNTS.size * number) for number in range(THREADS)]
    good, bad, refused, let_in = (sum(column) for column in zip(*counts, strict=True))
    assert (bad, let_in) == (0, 0)
    assert good > REPLACEMENTS
    assert refused > REPLACEMENTS
    assert all(row[0] for row in counts), "each thread has opened something"
