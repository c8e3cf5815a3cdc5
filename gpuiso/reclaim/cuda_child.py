# SPDX-License-Identifier: Apache-2.0
"""The program that makes the driver's checkpoint calls. Run as ``python -I -S cuda_child.py LIBRARY``.

One JSON object a line: requests on standard input, answers on standard output, in order. The first line it writes
tells what the library can do. It imports nothing of gpuiso: loading the driver is all it is for.

A driver call cannot be taken back while it runs, and killing its caller leaves the target half done. So this process
outlives its client: it ignores the signals of a terminal, and when the client is gone (end of file on standard input)
it walks every process that it changed, and was not told to keep, back to RUNNING before it ends.

Layouts: cuda.h of CUDA 12.8 to 13.4; every argument structure is 64 zeroed bytes, of which LockArgs uses the first
u32 (timeoutMs) and RestoreArgs the pointer at 0 and the u32 at 8 (gpuPairs, gpuPairsCount).
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any

RUNNING, LOCKED, CHECKPOINTED, FAILED = 0, 1, 2, 3
_PASSING = (4, 5)  # CHECKPOINTING, RESTORING: another caller's, or one that was killed, is still at it

_ARGUMENT_BYTES = 64
_TRIES = 3
_PAUSE = 0.2  # seconds between tries
_PASSING_LIMIT = 600.0  # seconds a passing state is waited for

_SYMBOLS = {
    "state": "cuCheckpointProcessGetState",
    "lock": "cuCheckpointProcessLock",
    "checkpoint": "cuCheckpointProcessCheckpoint",
    "restore": "cuCheckpointProcessRestore",
    "unlock": "cuCheckpointProcessUnlock",
}


class Gone(Exception):
    """The target ended."""


class Driver:
    """The calls. Each returns the CUresult as an integer."""

    def __init__(self, library: str) -> None:
        self.cuda = ctypes.CDLL(library)
        found = {name: getattr(self.cuda, symbol, None) for name, symbol in _SYMBOLS.items()}
        self.calls = {name: call for name, call in found.items() if call is not None}

    def hello(self) -> dict[str, Any]:
        """What this driver has. cuInit comes first: the restore of another process needs it in its caller."""
        started = time.monotonic()
        code = self.cuda.cuInit(0)
        version = ctypes.c_int(0)
        self.cuda.cuDriverGetVersion(ctypes.byref(version))
        return {
            "calls": sorted(self.calls),
            "cuInit": code,
            "version": version.value,
            "seconds": time.monotonic() - started,
        }

    def state(self, pid: int) -> tuple[int, int]:
        """The result and the CUprocessState."""
        value = ctypes.c_int(-1)
        code: int = self.calls["state"](ctypes.c_int(pid), ctypes.byref(value))
        return code, value.value

    def change(self, name: str, pid: int, timeout_ms: int = 0, pairs: Sequence[Sequence[str]] = ()) -> int:
        arguments = ctypes.create_string_buffer(_ARGUMENT_BYTES)
        table = b"".join(bytes.fromhex(uuid) for pair in pairs for uuid in pair)
        buffer = ctypes.create_string_buffer(table, max(1, len(table)))
        if name == "lock":
            ctypes.c_uint32.from_buffer(arguments, 0).value = timeout_ms
        elif name == "restore" and pairs:
            ctypes.c_uint64.from_buffer(arguments, 0).value = ctypes.addressof(buffer)
            ctypes.c_uint32.from_buffer(arguments, 8).value = len(pairs)
        code: int = self.calls[name](ctypes.c_int(pid), arguments)
        return code


class Helper:
    """Answers requests. ``changed`` are the processes that must not stay as they are when the client is gone."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.watched: dict[int, int] = {}
        self.changed: set[int] = set()

    def watch(self, pid: int) -> None:
        """Holds the process, so that no call ever goes to another one of the same number.

        :raises Gone: it ended.
        """
        if pid not in self.watched:
            try:
                self.watched[pid] = os.pidfd_open(pid)
            except OSError as error:
                raise Gone from error
        poll = select.poll()
        poll.register(self.watched[pid], select.POLLIN)
        if poll.poll(0):
            self.changed.discard(pid)
            raise Gone

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        pid = int(request["pid"])
        do = request["do"]
        started = time.monotonic()
        try:
            found = self.perform(do, pid, request)
        except Gone:
            found = {"gone": True}
        return {"id": request["id"], **found, "seconds": time.monotonic() - started}

    def perform(self, do: str, pid: int, request: dict[str, Any]) -> dict[str, Any]:
        if do == "keep":
            self.changed.discard(pid)
            return {"code": 0}
        self.watch(pid)
        if do == "back":
            return self.back(pid)
        if do == "state":
            code, value = self.driver.state(pid)
            return {"code": code, "value": value}
        self.changed.add(pid)  # before the call: it may never return
        return {"code": self.driver.change(do, pid, request["timeout_ms"], request["pairs"])}

    def back(self, pid: int) -> dict[str, Any]:
        """To RUNNING from wherever the process is. Answers with the state it ended in and the last failure."""
        failures = 0
        limit = time.monotonic() + _PASSING_LIMIT
        while True:
            self.watch(pid)
            code, state = self.driver.state(pid)
            if code == 0:
                if state in (RUNNING, FAILED):
                    self.changed.discard(pid)
                    return {"code": 0, "value": state}
                if state in _PASSING and time.monotonic() < limit:
                    time.sleep(_PAUSE)
                    continue
                code = self.driver.change("restore" if state == CHECKPOINTED else "unlock", pid)
                if code == 0:
                    continue
            failures += 1
            if failures == _TRIES:
                return {"code": code, "value": state}
            time.sleep(_PAUSE)

    def walk_all_back(self) -> None:
        for pid in sorted(self.changed):
            try:
                self.back(pid)
            except Gone:
                pass


def serve(helper: Helper, write: int) -> None:
    """Until standard input ends."""
    pending = b""
    while True:
        data = os.read(0, 65536)
        if not data:
            return
        pending += data
        while b"\n" in pending:
            line, _, pending = pending.partition(b"\n")
            reply = helper.answer(json.loads(line))
            try:
                os.write(write, json.dumps(reply).encode() + b"\n")
            except BrokenPipeError:
                return


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    write = os.dup(1)
    os.dup2(2, 1)  # whatever the driver prints is no answer
    try:
        driver = Driver(sys.argv[1])
    except OSError as error:
        os.write(write, json.dumps({"error": str(error)}).encode() + b"\n")
        return
    helper = Helper(driver)
    os.write(write, json.dumps(driver.hello()).encode() + b"\n")
    try:
        serve(helper, write)
    finally:
        helper.walk_all_back()


if __name__ == "__main__":
    main()
