# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's user-mode driver libraries: which file a program gets for a name, and of which version it is.

The version is in the file's name (``libcuda.so.580.159.04``), to which the link with the soname leads. The dynamic
linker takes a library from /etc/ld.so.cache, or else from its default directories (ld.so(8)).
"""

from __future__ import annotations

import posixpath
import re
import struct
from dataclasses import dataclass

from gpuiso.errors import Unknown
from gpuiso.host.protocol import Host

__all__ = ["LIBCUDA", "LIBNVIDIA_ML", "DriverLibrary", "cached_paths", "find_library", "library_at", "version_tuple"]

LIBCUDA = "libcuda.so.1"
LIBNVIDIA_ML = "libnvidia-ml.so.1"

#: Where distributions, installers and cluster images put the libraries, for hosts without a cache.
DIRECTORIES = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/aarch64-linux-gnu/nvidia/current",
    "/usr/lib64",
    "/usr/lib64/nvidia",
    "/usr/lib",
    "/usr/lib/nvidia",
    "/run/opengl-driver/lib",
    "/usr/local/nvidia/lib64",
)

_VERSION = re.compile(r"\.so\.(\d{1,5}\.\d{1,5}(?:\.\d{1,5})?)$")
_MAX_LINKS = 40  # as path_resolution(7)

# struct cache_file_new and struct file_entry_new, sysdeps/generic/dl-cache.h of glibc.
_MAGIC = b"glibc-ld.so.cache1.1"
_HEADER = struct.Struct("=20sIIB3xI12x")
_ENTRY = struct.Struct("=iIIIQ")
_ARCHITECTURE = 0xFF00  # FLAG_REQUIRED_MASK; 0 stands for 32-bit x86 and for other 32-bit machines


@dataclass(frozen=True, slots=True)
class DriverLibrary:
    """The file a program gets. ``path`` is what it asks for, ``file`` what that leads to."""

    path: str
    file: str
    version: str | None


def version_tuple(version: str) -> tuple[int, ...]:
    """``580.159.04`` as numbers that compare."""
    return tuple(int(part) for part in version.split("."))


def cached_paths(cache: bytes, soname: str) -> tuple[str, ...]:
    """The 64-bit libraries of that name in an ld.so.cache, the one that is taken first. Damaged data gives ()."""
    start = cache.find(_MAGIC)
    if start < 0 or len(cache) - start < _HEADER.size:
        return ()
    count = _HEADER.unpack_from(cache, start)[1]
    wanted = soname.encode() + b"\0"
    found = []
    for number in range(min(count, (len(cache) - start - _HEADER.size) // _ENTRY.size)):
        flags, key, value, _, _ = _ENTRY.unpack_from(cache, start + _HEADER.size + number * _ENTRY.size)
        if flags & _ARCHITECTURE and cache.startswith(wanted, start + key):
            path = cache[start + value : cache.find(b"\0", start + value)].decode("utf-8", "replace")
            if path.startswith("/"):
                found.append(path)
    return tuple(dict.fromkeys(found))


def library_at(host: Host, path: str, root: str = "") -> DriverLibrary | None:
    """The library at ``path``, its links followed; ``root`` is ``/proc/PID/root`` for a process's own view.

    :raises Unknown: a link on the way cannot be read.
    """
    file = path
    for _ in range(_MAX_LINKS):
        node = host.lstat(root + file)
        if node is None:
            return None
        if node.type != "l" or node.target is None:
            break
        file = posixpath.normpath(posixpath.join(posixpath.dirname(file), node.target))
    match = _VERSION.search(file)
    return DriverLibrary(path, file, None if match is None else match[1])


def find_library(host: Host, soname: str, root: str = "") -> DriverLibrary | None:
    """The library that a program gets for ``soname`` without LD_LIBRARY_PATH, None if there is none.

    :raises Unknown: the one that comes first cannot be read, or none was found where not all could be.
    """
    try:
        cache = host.read(f"{root}/etc/ld.so.cache")
    except Unknown:
        cache = None
    paths = cached_paths(cache, soname) if cache is not None else ()
    missing: Unknown | None = None
    for path in paths or tuple(f"{directory}/{soname}" for directory in DIRECTORIES):
        try:
            library = library_at(host, path, root)
        except Unknown as error:
            if paths:
                raise  # what comes first is what programs get: the next one would be a guess
            missing = missing or error
            continue
        if library is not None:
            return library
    if missing is not None:
        raise missing
    return None
