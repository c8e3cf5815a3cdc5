# SPDX-License-Identifier: Apache-2.0
"""What speaks against checkpointing a process, all of it at once, before anything is done to it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gpuiso.errors import GpuisoError, NotFound, NotPermitted, NotSupported, Unknown
from gpuiso.gpu.model import Gpu, Inventory
from gpuiso.host.cgroup_mounts import cgroup_mount
from gpuiso.host.process import cgroups, command_name, device_descriptors, environ, mapped_files, status
from gpuiso.host.protocol import Host
from gpuiso.reclaim.cuda import NOT_INITIALIZED, ProcessState, describe_failure
from gpuiso.reclaim.host_memory import rooms
from gpuiso.reclaim.target import Target
from gpuiso.reclaim.usage import NVIDIA_NODES, Usage

__all__ = ["CHECKS", "Case", "Reason", "examine", "not_running", "refuse"]

CAP_SYS_PTRACE = 19
_PF_KTHREAD = 0x00200000  # include/linux/sched.h
_MARGIN = 256 << 20  # bytes of host memory beside the copy itself
_MIB = 1 << 20

#: Drivers with a bug that loses the process: what it is, and where it is told.
DRIVER_DENYLIST = {
    "610.57.04": "its lock kills multithreaded processes (NVIDIA/cuda-checkpoint issue 58)",
}
_MPS = "nvidia-cuda-mps"  # comm of its server and its control daemon, both cut at 15 bytes
_NO_PROGRAM = ("ended", "init", "kernel-thread")  # nothing further can be asked of such
_INJECTION = "CUDA_INJECTION64_PATH"  # CUPTI, Nsight and other tools that sit between program and driver
_TOOLS = ("libToolsInjection64.so", "libsanitizer-collection.so", "libcuda-injection.so", "libcudadebugger.so")


@dataclass(frozen=True, slots=True)
class Reason:
    """``kind`` is a stable word, ``says`` a sentence about the process. ``error`` is what it is in the error tree."""

    kind: str
    says: str
    error: type[GpuisoError] = NotSupported


@dataclass(frozen=True)
class Case:
    """A process and what is known about it.

    ``state`` is the driver's word: a CUresult, and a ProcessState if that is 0. It is None if the driver was not asked;
    ``no_driver`` then says why.
    """

    host: Host
    inventory: Inventory
    target: Target
    usage: Usage
    state: tuple[int, ProcessState | None] | None
    no_driver: str | None = None

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        return self.usage.gpus(self.inventory)


def examine(case: Case) -> tuple[tuple[Reason, ...], tuple[str, ...]]:
    """Every reason not to begin, and what could not be examined (with why)."""
    reasons: list[Reason] = []
    unknown: list[str] = []
    for check in CHECKS:
        try:
            reasons += check(case)
        except Unknown as error:
            unknown.append(error.message)
        if any(reason.kind in _NO_PROGRAM for reason in reasons):
            break
    return tuple(reasons), tuple(unknown)


def refuse(target: Target, reasons: tuple[Reason, ...]) -> GpuisoError:
    """The error that says all of them. Its exit code is that of the reason that is the hardest to change."""
    for kind in (NotFound, NotPermitted, NotSupported):
        if any(issubclass(reason.error, kind) for reason in reasons):
            hint = "nothing was done; gpuiso reclaim --dry-run shows what other rungs would do"
            return kind(f"{target} cannot be checkpointed: {'; '.join(r.says for r in reasons)}", hint=hint)
    raise ValueError("no reason")


def _process(case: Case) -> Iterator[Reason]:
    pid = case.target.pid
    if pid == os.getpid():
        yield Reason("self", "it is gpuiso itself")
    if pid == 1 and not case.usage.any:
        yield Reason("init", "it is the init process, which is left alone")
    stat = case.host.text(f"/proc/{pid}/stat") or ""
    flags = stat.rpartition(")")[2].split()
    if len(flags) > 6 and int(flags[6]) & _PF_KTHREAD:
        yield Reason("kernel-thread", "it is a kernel thread")
    reason = not_running(case.host, pid)
    if reason is not None:
        yield reason


def not_running(host: Host, pid: int) -> Reason | None:
    """Why a process does not run, so that the driver would wait for it for ever; None if it does.

    :raises NotFound: it ended. :raises Unknown: not permitted to look.
    """
    state = status(host, pid).state
    if state in "ZX":
        return Reason("ended", "it has ended and waits for its parent to notice", NotFound)
    if state in "Tt":
        return Reason("stopped", "it is stopped (SIGSTOP or a debugger), and the driver needs it to run")
    places = cgroups(host, pid)
    mount = cgroup_mount(host, "")
    if "" in places and mount is not None:
        events = host.text(f"{mount}{places[''].rstrip('/')}/cgroup.events") or ""
        if "frozen 1" in events.splitlines():
            return Reason("frozen", f"its cgroup {places['']} is frozen, and the driver needs it to run")
    mount = cgroup_mount(host, "freezer")
    if "freezer" in places and mount is not None:
        word = host.text(f"{mount}{places['freezer'].rstrip('/')}/freezer.state") or "THAWED"
        if word.strip() != "THAWED":
            return Reason("frozen", f"its cgroup {places['freezer']} is frozen, and the driver needs it to run")
    return None


def _operator(case: Case) -> Iterator[Reason]:
    own = status(case.host, os.getpid())
    if not own.cap_eff >> CAP_SYS_PTRACE & 1:
        yield Reason("not-permitted", "reaching into a process needs root or CAP_SYS_PTRACE", NotPermitted)


def _cuda(case: Case) -> Iterator[Reason]:
    if case.state is None:
        if not case.usage.any:
            yield Reason("no-cuda", "it uses no CUDA")
        if case.no_driver is not None:
            yield Reason("driver", case.no_driver)
        return
    code, state = case.state
    if code == NOT_INITIALIZED:
        yield Reason("no-cuda", "it uses no CUDA")
    elif code != 0:
        yield Reason("driver", f"the driver does not tell its state ({describe_failure('state', code)})")
    elif state != ProcessState.RUNNING:
        word = "?" if state is None else state.name
        yield Reason("state", f"its CUDA state is {word}, not RUNNING: somebody else works on it, or did")


def _driver(case: Case) -> Iterator[Reason]:
    version = case.inventory.driver_version
    if version in DRIVER_DENYLIST:
        yield Reason("driver-bug", f"driver {version} must not be used for this: {DRIVER_DENYLIST[version]}")


def _mig(case: Case) -> Iterator[Reason]:
    for gpu in case.gpus:
        if gpu.mig_enabled:
            yield Reason("mig", f"GPU {gpu.uuid} is in MIG mode, which the driver cannot checkpoint")


def _mps(case: Case) -> Iterator[Reason]:
    if case.target.comm == _MPS:
        yield Reason("mps", "it is part of MPS, which the driver cannot checkpoint")
        return
    nodes = {gpu.node.path for gpu in case.gpus if gpu.node is not None}
    for pid in case.host.pids():
        if command_name(case.host, pid) != _MPS:
            continue
        try:
            shared = nodes & device_descriptors(case.host, pid, NVIDIA_NODES).keys()
        except NotFound:
            continue
        if shared:
            yield Reason("mps", f"its GPU is served by MPS (process {pid}), whose clients the driver cannot checkpoint")
            return


def _profiler(case: Case) -> Iterator[Reason]:
    pid = case.target.pid
    try:
        injected = environ(case.host, pid).get(_INJECTION)
    except Unknown:
        injected = None
    if injected:
        yield Reason("profiler", f"a tool is injected into it ({_INJECTION}={injected})")
        return
    loaded = [path for path in mapped_files(case.host, pid) if path.rpartition("/")[2].startswith(_TOOLS)]
    for path in loaded:
        yield Reason("profiler", f"a tool is loaded into it ({path})")


def _nvml(case: Case) -> Iterator[Reason]:
    if case.usage.memory is None and case.usage.any:
        why = case.usage.why or "no answer"
        yield Reason("nvml", f"how much GPU memory it would need again cannot be known ({why})")


def _memory(case: Case) -> Iterator[Reason]:
    need = case.usage.footprint()
    if need is None:
        # Without a word about the process, its GPUs' used memory is the most it can be.
        used = [gpu.memory_used for gpu in case.gpus]
        if not used or None in used:
            raise Unknown("memory of the process", "NVML does not tell how much it holds on its GPUs")
        need = sum(value or 0 for value in used)
    for room in rooms(case.host, case.target.pid):
        if room.free < need + _MARGIN:
            yield Reason(
                "host-memory",
                f"the copy of its GPU memory takes {need // _MIB} MiB of host memory, and {room.where} leaves "
                f"{max(0, room.free) // _MIB} MiB",
            )


CHECKS: tuple[Callable[[Case], Iterator[Reason]], ...] = (
    _process,
    _operator,
    _cuda,
    _driver,
    _mig,
    _mps,
    _profiler,
    _nvml,
    _memory,
)
