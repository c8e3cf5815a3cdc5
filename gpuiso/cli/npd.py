# SPDX-License-Identifier: Apache-2.0
"""``gpuiso doctor --npd``: one line for node-problem-detector's custom plugin monitor, whatever hangs.

Its contract (docs/custom_plugin_monitor.md): exit 0 is OK, 1 a problem, anything else unknown; the first 80 characters
of standard output are the message; after 5 seconds the plugin is killed. A read of /proc can hang as well as the
driver, so the examination runs in a forked child that is left behind at the deadline.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from gpuiso.cli.render.plain import plain
from gpuiso.cli.render.report import verdict
from gpuiso.cli.stopping import Stopped
from gpuiso.doctor.engine import examine
from gpuiso.errors import GpuisoError
from gpuiso.host.protocol import Host

__all__ = ["npd"]

OK, PROBLEM, UNKNOWN = 0, 1, 2
_WIDTH = 80
_DEADLINE = 4.0  # seconds from the start of the process that node-problem-detector allows 5


def _line(open_host: Callable[[], Host], scope: Mapping[str, Any]) -> tuple[int, str]:
    try:
        report = examine(open_host(), **scope)
    except GpuisoError as error:
        return UNKNOWN, error.message
    if not report.bad:
        return OK, verdict(report)
    first = report.findings[0]
    more = sum(finding.severity != "info" for finding in report.findings) - 1
    return PROBLEM, f"{first.rule.id}: {first.title}" + (f" (+{more} more)" if more else "")


def npd(open_host: Callable[[], Host], scope: Mapping[str, Any]) -> int:
    """Prints the line and returns the exit code, within the deadline. ``scope`` are the options of examine().

    A host that cannot be opened (no such record) is unknown to node-problem-detector, as all errors are.
    """
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        _answer_and_exit(writable, open_host, scope)
    os.close(writable)
    answer, line = _answer(readable)
    if answer is None:
        os.kill(child, signal.SIGKILL)
        code, line = UNKNOWN, f"no answer within {_DEADLINE:g} s: the driver or /proc hangs"
    else:
        os.waitpid(child, 0)
        code = answer
    print(_shorten(line))
    return code


def _shorten(line: str) -> str:
    """One line of at most 80 bytes, which is how node-problem-detector counts."""
    text = plain(" ".join(line.split()))
    if len(text.encode()) <= _WIDTH:
        return text
    return text.encode()[: _WIDTH - 3].decode("utf-8", "ignore") + "..."


def _answer_and_exit(writable: int, open_host: Callable[[], Host], scope: Mapping[str, Any]) -> NoReturn:
    try:
        code, line = _line(open_host, scope)
        os.write(writable, bytes([code]) + line.encode()[:4000])
    except (KeyboardInterrupt, Stopped):
        pass  # the parent got the signal too
    except BaseException:  # noqa: BLE001 - shown below, and the process ends here
        # The parent's stack goes on below: an error must end here, seen on stderr.
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(0)


def _answer(readable: int) -> tuple[int | None, str]:
    limit = time.monotonic() + _DEADLINE
    data = b""
    while True:
        ready, _, _ = select.select([readable], [], [], max(0.0, limit - time.monotonic()))
        if not ready:
            return None, ""
        chunk = os.read(readable, 1 << 16)
        if not chunk:
            break
        data += chunk
    if not data:
        return UNKNOWN, "the examination ended without an answer"
    return data[0], data[1:].decode("utf-8", "replace")
