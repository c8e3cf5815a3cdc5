# SPDX-License-Identifier: Apache-2.0
"""Run in a lab: apply rules to a unit with a failure (or the death of the process) at every single call.

Prints ``{"calls": how many calls the apply makes, "wrong": [what was not as before]}``.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from itertools import count
from pathlib import Path
from typing import Any

from gpuiso.apply.applied import all_applied
from gpuiso.apply.engine import carry_out
from gpuiso.apply.make_plan import make_plan
from gpuiso.apply.ownership import unit_target
from gpuiso.apply.recover import recover
from gpuiso.apply.state import State
from gpuiso.errors import FailedAndUndone
from gpuiso.host.live import LiveHost
from gpuiso.policy.document import parse_policy
from gpuiso.policy.resolve import resolve
from gpuiso.systemd.bus import connect
from tests.apply.faults import Counted, Die, Fail

POLICY = "allow default-nodes\nallow c 195:0 rw\nallow c 195:255 rw\n"


def look(unit: str) -> dict[str, Any]:
    shown = connect().unit_properties(unit)
    files = [
        str(path)
        for top in ("/run/systemd/system.control", "/run/systemd/transient", "/etc/systemd/system.control")
        for path in Path(top).glob(f"{unit}.d/*")
    ]
    return {"policy": shown["DevicePolicy"], "allow": shown["DeviceAllow"], "files": files}


def apply(unit: str, state: State, calls: Counted) -> None:
    host = LiveHost()
    target = unit_target(host, Counted(), unit)
    plan = make_plan(host, Counted(), target, resolve(parse_policy(POLICY), host))
    carry_out(plan, state=state, calls=calls)


def try_failing(unit: str, state: State, number: int, *, done: bool) -> bool:
    """Whether it failed and was undone."""
    try:
        apply(unit, state, Fail(number, done=done))
    except FailedAndUndone:
        return True
    return False


def try_dying(unit: str, state: State, number: int, *, done: bool) -> bool:
    """Whether it died and was undone. The child opens a connection to the bus of its own."""
    pid = os.fork()
    if pid == 0:
        connect.cache_clear()
        status = 1
        try:
            apply(unit, state, Die(number, done=done))
            status = 0
        finally:
            os._exit(status)
    died = os.WIFSIGNALED(os.waitpid(pid, 0)[1])
    recover(state, Counted())
    # What is remembered was applied: it died after the last call, when the change was over.
    return died and not list(all_applied(state))


def main() -> None:
    unit, how = sys.argv[1:]
    act = {"fail": try_failing, "die": try_dying}[how]
    state = State(Path(tempfile.mkdtemp(prefix="gpuiso-run-", dir="/run")))
    before = look(unit)
    wrong = []
    calls = 0
    for number, done in ((number, done) for number in count(1) for done in (False, True)):
        if not act(unit, state, number, done=done):
            break
        calls = number
        after = look(unit)
        if after != before or state.interrupted():
            wrong.append({"call": number, "done": done, "after": after})
    print(json.dumps({"calls": calls, "wrong": wrong}))


if __name__ == "__main__":
    main()
