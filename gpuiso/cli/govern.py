# SPDX-License-Identifier: Apache-2.0
"""``gpuiso govern``: hold gpu.max by measuring GPU time and freezing."""

from __future__ import annotations

import signal
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from gpuiso.cli.numbers import seconds as seconds_of
from gpuiso.cli.render.objects import print_object
from gpuiso.cli.render.plain import plain
from gpuiso.errors import NotSupported, UsageError

if TYPE_CHECKING:
    from gpuiso.govern.governor import Governor
    from gpuiso.policy.limits import GpuMax

__all__ = ["govern"]


def govern(
    limits: Annotated[
        list[str] | None,
        typer.Argument(metavar="CGROUP=QUOTA/PERIOD...", help="A v2 cgroup and its GPU time in µs: /job=50000/100000."),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Govern what `gpuiso rules apply` registers, until stopped.")
    ] = False,
    seconds: Annotated[
        float | None, typer.Option("--seconds", metavar="S", parser=seconds_of(0.1), help="Stop after S seconds.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False,
) -> int:
    """Hold cgroups to their share of GPU time (gpu.max).

    Measures the GPU time of each cgroup's processes with NVML and freezes the cgroup when it has had its share, in
    cycles of PERIOD. 50000/100000 is half of each GPU. A guardian thaws everything if
    this program is killed, stopped or stuck; when NVML does not answer nothing is held. A process in the middle of a
    checkpoint is never frozen.

    \b
    Examples:
      gpuiso govern /training=50000/100000
      gpuiso govern /a=70000/100000 /b=30000/100000 --seconds 60
      gpuiso govern --follow                 as the service gpuiso-governor does

    \b
    Exit codes: 0 stopped, or all cgroups are gone; 2 wrong usage; 3 no permission to freeze; 4 no such cgroup;
    5 no cgroup v2, no NVML.
    """
    if bool(limits) == follow:
        raise UsageError("give cgroups with their limits, or --follow")
    started = time.monotonic()
    used = _follow(seconds) if follow else _govern(limits or [], seconds)
    spent = time.monotonic() - started
    if as_json:
        cgroups = [
            {"cgroup": path, "gpu_seconds": round(u, 3), "share": round(u / spent, 4)} for path, u in used.items()
        ]
        print_object({"gpuiso": "govern/1", "seconds": round(spent, 3), "cgroups": cgroups})
    else:
        for path, u in used.items():
            print(plain(f"{path}: {u:.1f} s of GPU time in {spent:.1f} s ({100 * u / spent:.1f} %)"))
    return 0


def _limit(text: str) -> tuple[str, GpuMax]:
    from gpuiso.policy.limits import parse_gpu_max

    path, separator, share = text.rpartition("=")
    if not separator or not path.startswith("/"):
        raise UsageError(f"{text!r} is not CGROUP=QUOTA/PERIOD, such as /job=50000/100000")
    try:
        return path, parse_gpu_max(share.replace("/", " "))
    except ValueError as error:
        raise UsageError(f"{text!r}: {error}") from error


def _mount() -> str:
    from gpuiso.host import open_host
    from gpuiso.host.cgroup_mounts import cgroup_mount

    mount = cgroup_mount(open_host(), "")
    if mount is None:
        raise NotSupported("there is no cgroup v2 tree here", hint="boot with systemd.unified_cgroup_hierarchy=1")
    return mount


def _tell(sentence: str) -> None:
    print(plain(f"gpuiso govern: {sentence}"), file=sys.stderr)


def _stop_on_signals(governor: Governor) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: governor.stop())


def _govern(limits: list[str], seconds: float | None) -> dict[str, float]:
    from gpuiso.govern.cgroup import GovernedCgroup
    from gpuiso.govern.governor import Governor
    from gpuiso.host import open_host
    from gpuiso.host.nvml_usage import UsageReader

    wanted: dict[str, GpuMax] = {}
    for text in limits:
        path, share = _limit(text)
        if path in wanted:
            raise UsageError(f"{path} is given twice: a cgroup has one limit")
        wanted[path] = share
    mount = _mount()
    if open_host().nvml() is None:
        raise NotSupported("gpu.max cannot be held: GPU time is measured through NVML, which is not here")
    cgroups = [GovernedCgroup(mount, path, share) for path, share in wanted.items()]
    governor = Governor(cgroups, UsageReader(), _tell)
    _stop_on_signals(governor)
    governor.run(seconds)
    return {cgroup.path: cgroup.used for cgroup in cgroups}


def _follow(seconds: float | None) -> dict[str, float]:
    """Looks at the registry each second; the governor runs in between."""
    from gpuiso.govern.running import only_governor

    with only_governor():
        return _follow_registry(_mount(), seconds)


def _follow_registry(mount: str, seconds: float | None) -> dict[str, float]:
    from gpuiso.govern.follow import Follower
    from gpuiso.govern.governor import Governor
    from gpuiso.host.nvml_usage import UsageReader

    governor = Governor([], UsageReader(), _tell)
    _stop_on_signals(governor)
    follower = Follower(governor, mount, _tell)
    end = None if seconds is None else time.monotonic() + seconds
    looked = 0.0
    try:
        while not governor.stopped and (end is None or time.monotonic() < end):
            if time.monotonic() - looked > 1:
                looked = time.monotonic()
                follower.look()
            governor.tick()
        return governor.used()
    finally:
        governor.close()
