# SPDX-License-Identifier: Apache-2.0
"""Sets of device nodes that rules may call by name.

Their numbers are fixed (Documentation/admin-guide/devices.txt of the kernel), so no host needs to be asked.
``default-nodes`` holds what runc, crun and systemd (DevicePolicy=closed) all let every container or service use, and
/dev/console, which crun adds. It leaves out what only some of them allow: mknod of everything, /dev/net/tun.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["NODE_SETS"]

NODE_SETS: Mapping[str, Mapping[str, tuple[int, int | None]]] = {
    "default-nodes": {
        "/dev/null": (1, 3),
        "/dev/zero": (1, 5),
        "/dev/full": (1, 7),
        "/dev/random": (1, 8),
        "/dev/urandom": (1, 9),
        "/dev/tty": (5, 0),
        "/dev/console": (5, 1),
        "/dev/ptmx": (5, 2),
        "/dev/pts/*": (136, None),
    }
}
"""Character devices by set: what they are called, and their major and minor (None: every minor)."""
