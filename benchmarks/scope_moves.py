# SPDX-License-Identifier: Apache-2.0
"""Runs in a lab: moves a process into a new scope, time after time; ``python3 scope_moves.py MOVES``.

Each round makes every kind of move once and prints a line for it: ``NAME<tab>NANOSECONDS``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from gpuiso.apply.calls import Calls
from gpuiso.apply.engine import carry_out
from gpuiso.apply.plan_pid import plan_pid
from gpuiso.apply.state import State
from gpuiso.apply.steps import StartScope
from gpuiso.host.live import LiveHost
from gpuiso.host.process import start_time, unified_cgroup
from gpuiso.policy.document import parse_policy
from gpuiso.policy.resolve import resolve

DEVICES = (("DevicePolicy", "strict"), ("DeviceAllow", [["/dev/char/1:3", "rw"], ["/dev/char/195:255", "rw"]]))
PEER = ["/usr/bin/systemd-run", "--scope", "--quiet", "--collect", "/usr/bin/true"]
MOUNT = "/sys/fs/cgroup"


@contextmanager
def sleeper() -> Iterator[int]:
    """A process to move: a child that waits, in the cgroup of this one. Its scope ends with it."""
    pid = os.fork()
    if pid == 0:
        signal.pause()
        os._exit(0)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def systemd_run() -> int:
    begun = time.perf_counter_ns()
    subprocess.run(PEER, check=True)
    return time.perf_counter_ns() - begun


def moves(calls: Calls, state: State) -> dict[str, Callable[[int, str], None]]:
    """What moves process ``pid`` into the new scope ``unit``."""
    host = LiveHost()
    policy = resolve(parse_policy("allow default-nodes"), host)

    def call(pid: int, unit: str) -> None:
        calls.start_scope(unit, [("CollectMode", "inactive-or-failed"), *DEVICES, ("PIDs", [pid])])

    def step(pid: int, unit: str) -> None:
        cgroup = f"/system.slice/{unit}"
        scope = StartScope(unit, "system.slice", MOUNT, cgroup, pid, start_time(host, pid), DEVICES)
        with ExitStack() as keep:
            scope.apply(calls, scope.record(calls), keep)
            scope.check(calls)

    def whole(pid: int, unit: str) -> None:
        carry_out(plan_pid(host, calls, pid, policy), state=state, calls=calls)

    return {"in process: the call": call, "in process: the step": step, "in process: rules apply --pid": whole}


def main() -> None:
    calls, state = Calls(), State(Path("/run/gpuiso-bench"))
    kinds = moves(calls, state)
    for number in range(int(sys.argv[1])):
        print(f"systemd-run --scope\t{systemd_run()}", flush=True)
        for index, (name, move) in enumerate(kinds.items()):
            with sleeper() as pid:
                home = unified_cgroup(LiveHost(), pid)
                begun = time.perf_counter_ns()
                move(pid, f"bench-{number}-{index}-{pid}.scope")
                spent = time.perf_counter_ns() - begun
                if unified_cgroup(LiveHost(), pid) == home:
                    sys.exit(f"{name}: process {pid} was not moved")
            print(f"{name}\t{spent}", flush=True)


if __name__ == "__main__":
    main()
