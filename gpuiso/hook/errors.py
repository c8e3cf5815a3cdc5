# SPDX-License-Identifier: Apache-2.0
"""The one error of the hook: why a container may not start, in a sentence."""

from __future__ import annotations

__all__ = ["HookError", "reason"]


class HookError(Exception):
    """The container must not start; the text says why."""


def reason(error: BaseException) -> str:
    """An error as a sentence."""
    if isinstance(error, OSError):
        said = error.strerror or str(error)
        return f"{error.filename}: {said}" if error.filename else said
    return str(error) if isinstance(error, HookError) else f"{type(error).__name__}: {error}"
