# SPDX-License-Identifier: Apache-2.0
"""Work that is done in a forked child, because it dies, or changes the process that does it."""

from __future__ import annotations

import os
from collections.abc import Callable

__all__ = ["in_child", "start_child"]


def start_child(work: Callable[[], object]) -> int:
    """The pid of a child that does it. It ends with 0 unless ``work`` raised; what it raised goes to stderr."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException as error:  # noqa: BLE001 (a child of fork must end here whatever happens)
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
        finally:
            os._exit(status)
    return pid


def in_child(work: Callable[[], object]) -> int:
    """The wait status of such a child: 0 if it came to its end."""
    return os.waitpid(start_child(work), 0)[1]
