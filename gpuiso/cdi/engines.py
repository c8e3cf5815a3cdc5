# SPDX-License-Identifier: Apache-2.0
"""Which CDI versions the container engines on a host can read.

An engine decodes strictly with the library it was built with, so a spec of a later version, or with a later
field, is refused as a whole. The table holds upper bounds: podman 4.9 refuses 0.7.0
(https://github.com/NVIDIA/nvidia-container-toolkit/issues/1860); Docker took 0.7.0 with
https://github.com/moby/moby/pull/47706, 0.8.0 with https://github.com/moby/moby/pull/48886, 1.0.1 with
https://github.com/moby/moby/pull/49738; containerd took 1.0.0 with
https://github.com/containerd/containerd/pull/11565 and 1.1.0 with
https://github.com/containerd/containerd/pull/12663.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from gpuiso.cdi.version import parse_version
from gpuiso.errors import Unknown
from gpuiso.host.protocol import Host

__all__ = ["Engine", "Engines", "every_engine_reads", "installed_engines", "newest_readable", "no_engines"]

# Releases below the first number read at most the version beside it; first match counts.
_READS: dict[str, tuple[tuple[tuple[int, int], str], ...]] = {
    "podman": (((5, 0), "0.6.0"),),
    "docker": (((26, 1), "0.6.0"), ((27, 0), "0.7.0"), ((28, 1), "0.8.0"), ((29, 0), "1.0.0")),
    "containerd": (((2, 1), "0.8.0"), ((2, 2), "1.0.0")),
}
_COMMANDS = {
    "podman": ("podman", "--version"),
    "docker": ("dockerd", "--version"),
    "containerd": ("containerd", "--version"),
}
_RELEASE = re.compile(r"\bv?(\d+)\.(\d+)\.\d+")


@dataclass(frozen=True, slots=True)
class Engine:
    """``reads`` is the newest CDI version it can read, None where that is not known to be limited."""

    name: str
    release: str
    reads: str | None


Engines = Callable[[], tuple[Engine, ...]]
"""The engines of a host; called only when a version is met that some engine cannot read, for asking takes
time.
"""


def no_engines() -> tuple[Engine, ...]:
    return ()


def every_engine_reads(version: tuple[int, ...]) -> bool:
    """Whether no engine of the table is too old for a version (as :func:`gpuiso.cdi.version.parse_version`
    gives it).
    """
    lowest = min(parse_version(newest) or () for limits in _READS.values() for _, newest in limits)
    return version <= lowest


def installed_engines(host: Host) -> tuple[Engine, ...]:
    """The engines whose programs answer on ``host``; one that the host cannot tell about is left out."""
    found = []
    for name, argv in _COMMANDS.items():
        try:
            result = host.command(argv)
        except Unknown:
            continue
        match = _RELEASE.search(result.stdout) if result is not None else None
        if match is not None:
            release = (int(match[1]), int(match[2]))
            found.append(Engine(name, match[0].removeprefix("v"), newest_readable(name, release)))
    return tuple(found)


def newest_readable(engine: str, release: tuple[int, int]) -> str | None:
    """The newest CDI version that ``engine`` of this release can read, None if no limit is known."""
    return next((version for below, version in _READS[engine] if release < below), None)
