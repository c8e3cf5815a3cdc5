# SPDX-License-Identifier: Apache-2.0
"""Who is told what is waited for. Only the command line prints, and a lock is deep below it."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

__all__ = ["tell_waits"]

tell_waits: ContextVar[Callable[[str], None] | None] = ContextVar("tell_waits", default=None)
"""Called with a sentence once something has been waited for a second; None tells nobody."""
