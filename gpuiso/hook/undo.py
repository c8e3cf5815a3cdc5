# SPDX-License-Identifier: Apache-2.0
"""What was done, so that a failure can take it back and success can tidy up."""

from __future__ import annotations

from gpuiso.hook.errors import HookError, reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Undo"]


class Undo:
    """Steps to take back in reverse on failure, and what to tidy on success."""

    def __init__(self) -> None:
        self._back: list[Callable[[], object]] = []
        self._tidy: list[Callable[[], object]] = []

    def on_failure(self, step: Callable[[], object]) -> None:
        self._back.append(step)

    def on_success(self, step: Callable[[], object]) -> None:
        self._tidy.append(step)

    def finish(self) -> None:
        """Everything was done: throw away what was kept for going back."""
        self._back.clear()
        for step in self._tidy:
            step()

    def take_back(self) -> list[str]:
        """Go back as far as possible; what could not be taken back."""
        failed = []
        while self._back:
            try:
                self._back.pop()()
            except (OSError, HookError) as error:
                failed.append(reason(error))
        return failed
