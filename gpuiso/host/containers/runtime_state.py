# SPDX-License-Identifier: Apache-2.0
"""What a low-level runtime writes down of a container: the form that runc's and crun's state have in common."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gpuiso.host.containers.state_files import StateFiles

__all__ = ["RuntimeState", "integer", "roots"]


@dataclass(frozen=True, slots=True)
class RuntimeState:
    """``start`` is in clock ticks after boot, as in /proc/PID/stat; ``cgroup`` a path below a hierarchy's root.

    ``owner`` is the user of a rootless container, in whose directory the state lies.
    """

    id: str
    runtime: str
    pid: int | None
    start: int | None
    cgroup: str | None
    bundle: str | None
    owner: int | None


def roots(files: StateFiles, runtime: str) -> Iterator[tuple[int | None, str]]:
    """The directories in which a runtime keeps its state, with the user whose it is: /run/NAME for root.

    Both runtimes use $XDG_RUNTIME_DIR/NAME where that is set, for root as well.
    """
    yield None, f"/run/{runtime}"
    for uid, directory in files.user_directories():
        yield uid or None, f"{directory}/{runtime}"


def integer(value: Any) -> int | None:
    """An integer of a JSON document."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None
