# SPDX-License-Identifier: Apache-2.0
"""Which of systemd's slices a cgroup is in.

Only those of the system's manager, which come first in a path and each begin with the name of the one above
(systemd.slice(5)): below a user's own manager, or in a delegated cgroup, anybody may make a directory of any name.
"""

from __future__ import annotations

__all__ = ["slices_of"]

_SUFFIX = ".slice"


def slices_of(cgroup: str) -> list[str]:
    """The names, the outermost first."""
    found: list[str] = []
    for part in cgroup.split("/")[1:]:
        above = f"{found[-1].removesuffix(_SUFFIX)}-" if found else ""
        if not part.endswith(_SUFFIX) or not part.startswith(above):
            break
        found.append(part)
    return found
