# SPDX-License-Identifier: Apache-2.0
"""Maps that device programs look things up in, and the kernel functions they call, on the running machine."""

from __future__ import annotations

import os
from functools import cache

from gpuiso.host.files import read_file
from gpuiso.kernel.bpf import map_get_fd_by_id, map_info, map_lookup_elem

__all__ = ["LiveMap", "kernel_function", "open_map"]


class LiveMap:
    """A map, readable while this object lives. ``type`` is a number of enum bpf_map_type, sizes are bytes."""

    def __init__(self, map_id: int) -> None:
        self._fd = map_get_fd_by_id(map_id)
        self._info = map_info(self._fd)
        self.type = self._info.type
        self.key_size = self._info.key_size
        self.value_size = self._info.value_size

    def __del__(self) -> None:
        fd = getattr(self, "_fd", None)
        if fd is not None:
            os.close(fd)

    def lookup(self, key: bytes) -> bytes | None:
        """The value of a key, None if there is none."""
        return map_lookup_elem(self._fd, key, self._info)


def open_map(map_id: int) -> LiveMap | None:
    """A map by its id, None if it may not be read or is gone."""
    try:
        return LiveMap(map_id)
    except OSError:
        return None


@cache
def _functions() -> dict[int, str]:
    """Kernel functions by their distance from __bpf_call_base; empty where the kernel hides its addresses."""
    found: dict[int, str] = {}
    for line in (read_file("/proc/kallsyms") or b"").decode("ascii", "replace").splitlines():
        address, kind, name = line.split()[:3]
        if kind in "tT":
            found[int(address, 16)] = name
    base = next((address for address, name in found.items() if name == "__bpf_call_base"), 0)
    return {address - base: name for address, name in found.items()} if base else {}


def kernel_function(distance: int) -> str | None:
    """The function that the immediate of a CALL in a loaded program stands for, None if it cannot be named."""
    return _functions().get(distance)
