# SPDX-License-Identifier: Apache-2.0
"""SIGTERM and SIGHUP as exceptions: what was begun is cleaned up before the program ends."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

__all__ = ["Stopped", "stopping_signals"]

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class Stopped(BaseException):
    """The signal ``number`` came. Like KeyboardInterrupt it is no Exception: nobody handles it on the way."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@contextlib.contextmanager
def stopping_signals() -> Iterator[None]:
    """Within it these signals raise Stopped, the first time; a second one ends the program at once.

    A signal that is ignored (nohup) or that somebody handles already stays so, and outside the main thread, where
    Python lets nobody set handlers, nothing is done.
    """
    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.SIG_DFL for number in _SIGNALS if signal.getsignal(number) == signal.SIG_DFL}

    def stop(number: int, frame: FrameType | None) -> None:
        for each in before:
            signal.signal(each, signal.SIG_DFL)
        raise Stopped(number)

    for number in before:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
