# SPDX-License-Identifier: Apache-2.0
"""One driver call on one process, watched while it runs."""

from __future__ import annotations

import time
from collections.abc import Sequence

from gpuiso.errors import GpuisoError
from gpuiso.reclaim.cuda import describe_failure
from gpuiso.reclaim.session import Progress, Session, patience
from gpuiso.reclaim.target import Target, TargetEnded
from gpuiso.reclaim.usage import resident

__all__ = ["drive", "words"]

_COPIES = ("checkpoint", "restore")
# What the driver answers when its target is being killed: gigabytes take a while to be freed, and until then the
# process counts as alive (seen on an H200: SIGKILL in the middle of a restore of 4 GiB).
_UNREACHABLE = frozenset({3, 304, 401, 999})
_DYING = 2.0  # seconds
_QUICK = 20.0  # seconds that a lock may take beside its own timeout, and an unlock in all


def drive(
    session: Session,
    target: Target,
    do: str,
    *,
    total: int | None,
    timeout: float = 0.0,
    pairs: Sequence[tuple[str, str]] = (),
) -> float:
    """Makes the call; returns how many seconds the driver took. ``timeout`` is a lock's, in seconds.

    While bytes move, progress is told from the process's own size: the copy lives in it, so it grows and shrinks by
    what was moved, and reading that costs the copy nothing.

    :raises GpuisoError: the driver's own answer, or what the helper raises.
    """
    copies = do in _COPIES
    before = resident(session.host, target.pid) if copies else 0
    started = time.monotonic()

    def tick() -> None:
        moved = abs(resident(session.host, target.pid) - before)
        shown = moved if total is None else min(moved, total)
        session.notify(Progress(do, target, shown, total, time.monotonic() - started))

    answer = session.helper.call(
        do,
        target.pid,
        deadline=patience(total) if copies else timeout + _QUICK,
        pidfd=target.pidfd,
        tick=tick if copies else None,
        timeout_ms=max(1, int(1000 * timeout)),
        pairs=pairs,
    )
    if answer.code in _UNREACHABLE and target.wait(_DYING):
        raise TargetEnded(f"{target} ended")
    if answer.code != 0:
        raise GpuisoError(f"{target}: {describe_failure(do, answer.code)}")
    return answer.seconds


def words(error: BaseException) -> str:
    """What went wrong, as a clause."""
    if isinstance(error, GpuisoError):
        return error.message
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return f"{type(error).__name__}: {error}"
