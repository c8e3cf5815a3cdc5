# SPDX-License-Identifier: Apache-2.0
"""Many containers on this machine, as far as /proc and the cgroup tree tell.

They are cgroups named after containers, each with a device program and a process in a mount namespace of its own.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.registry import NotMeasurable
from gpuiso.devfilter.compile import compile_rules
from gpuiso.devfilter.insn import pack
from gpuiso.host.cgroup_mounts import cgroup_mounts
from gpuiso.host.live import LiveHost
from gpuiso.kernel import bpf
from gpuiso.policy.parse import parse_rules

__all__ = ["crowd"]

RULES = """allow c 1:* rwm
allow c 5:* rwm
allow c 136:* rwm
allow c 195:* rw
allow c 235:* rw
"""
KINDS = 8  # of containers: engines give those that were started alike the same program
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "NVIDIA_VISIBLE_DEVICES": "all"}


@contextmanager
def crowd(size: int) -> Iterator[None]:
    """``size`` of them while the block runs. :raises NotMeasurable: this machine lacks what it takes."""
    mount = cgroup_mounts(LiveHost()).get("")
    unshare = shutil.which("unshare")
    if os.geteuid() != 0 or mount is None or unshare is None:
        raise NotMeasurable("it takes root, a cgroup2 mount and unshare(1)")
    top = Path(mount, f"gpuiso-bench-{os.getpid()}")
    pids: list[int] = []
    try:
        top.mkdir()
        for number in range(size):
            pids.append(os.posix_spawn(unshare, ["unshare", "--mount", "sleep", "600"], ENVIRONMENT))
            _contain(top / f"docker-{number:064x}.scope", number, pids[-1])
        time.sleep(0.5)  # until the last of them sleeps
        yield
    except PermissionError as error:
        raise NotMeasurable(f"cgroups with device programs cannot be made: {error}") from error
    finally:
        _remove(top, pids)


def _contain(cgroup: Path, number: int, pid: int) -> None:
    program = pack(compile_rules(parse_rules(f"{RULES}allow c 300:{number % KINDS} rw\n")))
    cgroup.mkdir()
    directory = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY)
    try:
        loaded = bpf.prog_load(program)
        try:
            bpf.prog_attach(directory, loaded, flags=bpf.BPF_F_ALLOW_MULTI)
        finally:
            os.close(loaded)
    finally:
        os.close(directory)
    (cgroup / "cgroup.procs").write_text(str(pid))


def _remove(top: Path, pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    if not top.is_dir():
        return
    for cgroup in (*(path for path in top.iterdir() if path.is_dir()), top):
        for _ in range(200):
            try:
                cgroup.rmdir()
                break
            except OSError:
                time.sleep(0.01)  # the kernel lets go of the last process a moment after it ended
