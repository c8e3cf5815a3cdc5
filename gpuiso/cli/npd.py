# SPDX-License-Identifier: Apache-2.0
"""``gpuiso doctor --npd``: one line for node-problem-detector's custom plugin monitor, whatever hangs.

Its contract (docs/custom_plugin_monitor.md): exit 0 is OK, 1 a problem, anything else unknown; the first 80 characters
of standard output are the message; after 5 seconds the plugin is killed. A read of /proc can hang as well as the
driver, so the examination runs in a forked child that is left behind at the deadline. What it found by then is told.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from gpuiso.cli.render.plain import plain
from gpuiso.cli.render.report import verdict
from gpuiso.cli.stopping import Stopped
from gpuiso.doctor.engine import examine
from gpuiso.doctor.finding import Finding
from gpuiso.errors import GpuisoError
from gpuiso.host.protocol import Host

__all__ = ["npd"]

OK, PROBLEM, UNKNOWN = 0, 1, 2
_WIDTH = 80
_DEADLINE = 3.5  # seconds from the start of the process that node-problem-detector allows 5
_LEAST = 0.5  # seconds for the examination, however long it took to get to it
_QUIET = 0.5  # of the deadline: an examination that says nothing for so long, and does not run, hangs
_NO_ANSWER = "the examination ended without an answer"
_ORDER = {"error": 0, "warning": 1, "info": 2}


def _line(
    open_host: Callable[[], Host], scope: Mapping[str, Any], heard: Callable[[Sequence[Finding]], None]
) -> tuple[int, str]:
    try:
        report = examine(open_host(), **scope, heard=heard)
    except GpuisoError as error:
        return UNKNOWN, error.message
    return _problem(report.findings) or (OK, verdict(report))


def _problem(findings: Sequence[Finding]) -> tuple[int, str] | None:
    """The most severe finding and the number of the others, None if there is none that counts."""
    bad = sorted((each for each in findings if each.severity != "info"), key=lambda each: _ORDER[each.severity])
    if not bad:
        return None
    more = f" (+{len(bad) - 1} more)" if len(bad) > 1 else ""
    return PROBLEM, f"{bad[0].rule.id}: {bad[0].title}{more}"


def npd(open_host: Callable[[], Host], scope: Mapping[str, Any]) -> int:
    """Prints the line and returns the exit code, within the deadline. ``scope`` are the options of examine().

    A host that cannot be opened (no such record) is unknown to node-problem-detector, as all errors are.
    """
    allowed = max(_LEAST, _DEADLINE - _age())
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(readable)
        _answer_and_exit(writable, open_host, scope)
    os.close(writable)
    answer, quiet = _listen(readable, min(allowed, _DEADLINE))
    if answer.get("done"):
        os.waitpid(child, 0)
        if answer.get("trace"):
            print(answer["trace"], end="", file=sys.stderr)
    else:
        hangs = quiet >= _QUIET * min(allowed, _DEADLINE) and _state(child) != "R"
        os.kill(child, signal.SIGKILL)
        answer = _unfinished(answer, hangs=hangs)
    print(_shorten(answer["line"]))
    return int(answer["code"])


def _unfinished(answer: Mapping[str, Any], *, hangs: bool) -> dict[str, Any]:
    """What to say of an examination that was not waited for: what it had found, else that it found nothing yet."""
    if answer.get("code") == PROBLEM:
        return dict(answer)
    if hangs:
        line = f"no answer within {_DEADLINE:g} s: the driver or /proc hangs"
    else:
        line = f"not finished within {_DEADLINE:g} s, and nothing found by then"
    return {"code": UNKNOWN, "line": line}


def _age() -> float:
    """Seconds since this process was started as the plugin; 0 where it is another program that calls us."""
    if "--npd" not in sys.argv:
        return 0.0
    try:
        with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0.0
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def _state(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "?"


def _shorten(line: str) -> str:
    """One line of at most 80 bytes, which is how node-problem-detector counts."""
    text = plain(" ".join(line.split()))
    if len(text.encode()) <= _WIDTH:
        return text
    return text.encode()[: _WIDTH - 3].decode("utf-8", "ignore") + "..."


def _answer_and_exit(writable: int, open_host: Callable[[], Host], scope: Mapping[str, Any]) -> NoReturn:
    def say(code: int, line: str, *, done: bool, trace: str = "") -> None:
        answer = {"code": code, "line": line[:500], "done": done, "trace": trace}
        os.write(writable, json.dumps(answer).encode() + b"\n")

    def heard(findings: Sequence[Finding]) -> None:
        say(*(_problem(findings) or (UNKNOWN, "")), done=False)

    try:
        # Whoever reads our output waits for its end: a child that hangs must not hold it open.
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 1)
        os.dup2(null, 2)
        code, line = _line(open_host, scope, heard)
        say(code, line, done=True)
    except (KeyboardInterrupt, Stopped):
        pass  # the parent got the signal too
    except BaseException:  # noqa: BLE001 - told to the parent, and the process ends here
        # The parent's stack goes on below: an error must end here.
        say(UNKNOWN, _NO_ANSWER, done=True, trace=traceback.format_exc())
    finally:
        os._exit(0)


def _listen(readable: int, allowed: float) -> tuple[dict[str, Any], float]:
    """The last answer by the deadline, and for how many seconds none had come then."""
    limit = time.monotonic() + allowed
    answer: dict[str, Any] = {}
    last, data = time.monotonic(), b""
    while not answer.get("done"):
        ready, _, _ = select.select([readable], [], [], max(0.0, limit - time.monotonic()))
        if not ready:
            break
        chunk = os.read(readable, 1 << 16)
        if not chunk:
            return {"code": UNKNOWN, "line": _NO_ANSWER, "done": True}, 0.0
        *lines, data = (data + chunk).split(b"\n")
        if lines:
            answer, last = json.loads(lines[-1]), time.monotonic()
    return answer, time.monotonic() - last
