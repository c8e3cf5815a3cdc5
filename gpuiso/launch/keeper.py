# SPDX-License-Identifier: Apache-2.0
"""The process that holds the gpu.max of one workload, for as long as somebody is in its cgroup.

It is started before the workload, stays outside its cgroup, and is told the cgroup when that exists. It answers when it
holds the limit; only then does the workload begin.
"""

from __future__ import annotations

import json
import os
import signal
import time
from itertools import pairwise

from gpuiso.errors import GpuisoError, NotSupported
from gpuiso.launch.cgroups import Cgroups
from gpuiso.launch.lease import CgroupId
from gpuiso.launch.store import Leases
from gpuiso.policy.limits import GpuMax

__all__ = ["Keeper"]

_LOOK = 0.25  # seconds between looks whether the workload is still there
_MOST = 1 << 16
_DESCRIPTORS = 1 << 20  # more than a process has


class Keeper:
    """The keeper's process, seen from the launcher."""

    def __init__(self, limit: GpuMax, leases: Leases, cgroups: Cgroups) -> None:
        orders, self._orders = os.pipe2(os.O_CLOEXEC)
        self._answers, answers = os.pipe2(os.O_CLOEXEC)
        middle = os.fork()
        if middle == 0:
            try:
                if os.fork() == 0:
                    _detach(orders, answers)
                    _keep(orders, answers, limit, leases, cgroups)
            finally:
                os._exit(0)
        os.waitpid(middle, 0)
        os.close(orders)
        os.close(answers)

    def hold(self, cgroup: CgroupId) -> None:
        """Returns when the limit is held. :raises NotSupported: it cannot be, says why."""
        with open(self._orders, "w") as file:
            file.write(json.dumps([cgroup.mount, cgroup.path, cgroup.unit, cgroup.ours]) + "\n")
        with open(self._answers) as file:
            answer = file.readline(_MOST).rstrip("\n")  # not its end: the governor's guardian has the pipe too
        if answer != "held":
            raise NotSupported(f"gpu.max cannot be held: {answer or 'its keeper died'}")


def _detach(*kept: int) -> None:
    """Away from the terminal, from the streams, which somebody may wait for the end of, and from the lease's lock."""
    os.setsid()
    for low, high in pairwise((2, *sorted(kept), _DESCRIPTORS)):
        os.closerange(low + 1, high)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nowhere, fd)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def _keep(orders: int, answers: int, limit: GpuMax, leases: Leases, cgroups: Cgroups) -> None:
    """Runs in the keeper."""
    from gpuiso.govern.cgroup import GovernedCgroup
    from gpuiso.govern.governor import Governor
    from gpuiso.host.nvml_usage import UsageReader

    with open(orders) as file:
        text = file.readline(_MOST)
    if not text:
        return  # the launcher gave up
    mount, path, unit, ours = json.loads(text)
    try:
        cgroup = cgroups.identify(mount, path, unit=unit, ours=ours)
        governor = Governor([GovernedCgroup(mount, path, limit)], UsageReader())
    except (GpuisoError, OSError) as error:
        os.write(answers, f"{error}\n".encode())
        return
    signal.signal(signal.SIGTERM, lambda *_: governor.stop())
    os.write(answers, b"held\n")
    os.close(answers)
    looked = time.monotonic()
    try:
        while not governor.stopped and governor.cgroups:
            governor.tick()
            if time.monotonic() - looked > _LOOK:
                looked = time.monotonic()
                if not cgroups.populated(cgroup):
                    break
    finally:
        governor.close()
    leases.listing()  # what has ended is taken away, this lease too
