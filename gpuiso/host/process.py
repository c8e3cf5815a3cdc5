# SPDX-License-Identifier: Apache-2.0
"""Processes, as /proc/PID tells of them (proc(5)): pure functions of a host.

Each raises :class:`gpuiso.errors.NotFound` for a process that does not exist (or ended meanwhile), and
:class:`gpuiso.errors.Unknown` for what may not be read or was not recorded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from gpuiso.errors import NotFound, NotSupported, Unknown
from gpuiso.host.decimals import decimal
from gpuiso.host.protocol import Host

__all__ = [
    "Status",
    "ancestors",
    "cgroups",
    "command_name",
    "device_descriptors",
    "environ",
    "mapped_files",
    "require",
    "start_time",
    "status",
    "unified_cgroup",
]


@dataclass(frozen=True, slots=True)
class Status:
    """The fields of /proc/PID/status that gpuiso uses.

    Ids are effective ones, with those that count for files beside them (setfsuid(2)); ``nspid`` outermost first.
    """

    name: str
    state: str
    ppid: int
    uid: int
    gid: int
    fsuid: int
    fsgid: int
    groups: frozenset[int]
    nspid: tuple[int, ...]
    cap_eff: int
    seccomp: int | None
    no_new_privs: bool | None


_PF_KTHREAD = 0x00200000  # include/linux/sched.h


def require(host: Host, pid: int) -> None:
    """Does nothing if there is such a process (in a record: if anything of it is recorded) and it runs a program.

    :raises NotFound: there is none, or all that is left of it is a zombie.
    :raises NotSupported: it is a thread of the kernel.
    """
    try:
        known = host.stat(f"/proc/{pid}") is not None
    except Unknown:
        known = False
    if not known:
        raise NotFound(f"no process {pid} on {host.name}")
    if _answer(host, pid, "status", _is_zombie):
        raise NotFound(
            f"process {pid} has ended (a zombie)",
            hint="it holds nothing any more: its parent has yet to ask for its exit status",
        )
    if _answer(host, pid, "stat", _is_kernel_thread):
        raise NotSupported(f"process {pid} is a kernel thread: it uses no GPU")


def _answer(host: Host, pid: int, name: str, question: Callable[[str], bool]) -> bool:
    try:
        return question(host.text(f"/proc/{pid}/{name}") or "")
    except Unknown:
        return False


def _is_zombie(text: str) -> bool:
    return re.search(r"^State:\s*[ZX]", text, re.MULTILINE) is not None


def _is_kernel_thread(text: str) -> bool:
    fields = text[text.rfind(")") + 1 :].split()
    flags = decimal(fields[6]) if len(fields) > 6 else None  # proc_pid_stat(5), (9) flags
    return flags is not None and bool(flags & _PF_KTHREAD)


def _required(host: Host, pid: int, name: str) -> str:
    text = host.text(f"/proc/{pid}/{name}")
    if text is None:
        raise NotFound(f"no process {pid} on {host.name}")
    return text


def status(host: Host, pid: int) -> Status:
    """Who a process is and how it does."""
    text = _required(host, pid, "status")
    try:
        return _status(text, pid)
    except (KeyError, ValueError, IndexError) as error:
        raise Unknown(f"/proc/{pid}/status", f"not in the form of proc_pid_status(5): {error}") from error


@lru_cache(maxsize=8)  # many questions about one process need it
def _status(text: str, pid: int) -> Status:
    lines = (line.partition(":") for line in text.splitlines())
    fields = {name: value.strip() for name, _, value in lines}
    return Status(
        name=fields["Name"],
        state=fields["State"][:1],
        ppid=int(fields["PPid"]),
        uid=int(fields["Uid"].split()[1]),
        gid=int(fields["Gid"].split()[1]),
        fsuid=int(fields["Uid"].split()[-1]),
        fsgid=int(fields["Gid"].split()[-1]),
        groups=frozenset(int(word) for word in fields.get("Groups", "").split()),
        nspid=tuple(int(word) for word in fields.get("NSpid", str(pid)).split()),
        cap_eff=int(fields["CapEff"], 16),
        seccomp=int(fields["Seccomp"]) if "Seccomp" in fields else None,
        no_new_privs=fields["NoNewPrivs"] == "1" if "NoNewPrivs" in fields else None,
    )


def command_name(host: Host, pid: int) -> str:
    """The process's own name (comm), at most 15 bytes, or ``?`` where it cannot be read."""
    try:
        return _required(host, pid, "comm").rstrip("\n")
    except (NotFound, Unknown):
        return "?"


def environ(host: Host, pid: int) -> dict[str, str]:
    """The environment a process was started with; later changes by the process itself are not seen here.

    Where a name stands twice the first one counts, as for getenv(3).
    """
    found: dict[str, str] = {}
    for entry in _required(host, pid, "environ").split("\0"):
        name, separator, value = entry.partition("=")
        if separator:
            found.setdefault(name, value)
    return found


def mapped_files(host: Host, pid: int) -> frozenset[str]:
    """The files a process has mapped (proc_pid_maps(5)), as paths in its own view; deleted ones without the mark."""
    found = set()
    for line in _required(host, pid, "maps").splitlines():
        fields = line.split(None, 5)
        if len(fields) == 6 and fields[5].startswith("/"):
            found.add(fields[5].removesuffix(" (deleted)"))
    return frozenset(found)


def start_time(host: Host, pid: int) -> int:
    """Clock ticks after boot at which the process started: with the pid, it names a process for good."""
    text = _required(host, pid, "stat")
    try:
        return int(text[text.rindex(")") + 2 :].split()[19])
    except (ValueError, IndexError) as error:
        raise Unknown(f"/proc/{pid}/stat", "not in the form of proc_pid_stat(5)") from error


def ancestors(host: Host, pid: int) -> Iterator[int]:
    """The parents of a process up to PID 1, nearest first; ends early where a parent cannot be seen."""
    seen = {pid}
    while True:
        try:
            pid = status(host, pid).ppid
        except (NotFound, Unknown):
            return
        if pid == 0 or pid in seen:
            return
        seen.add(pid)
        yield pid


def cgroups(host: Host, pid: int) -> dict[str, str]:
    """The cgroup of a process in each hierarchy: v1 controllers by name, the v2 tree under the empty name.

    A name is any bytes: those that are not UTF-8 become surrogates, as os.fsdecode() makes them.
    """
    data = host.read(f"/proc/{pid}/cgroup")
    if data is None:
        raise NotFound(f"no process {pid} on {host.name}")
    found: dict[str, str] = {}
    for line in data.decode("utf-8", "surrogateescape").strip("\n").split("\n"):
        if line.count(":") < 2:
            raise Unknown(f"/proc/{pid}/cgroup", "not in the form of cgroups(7)")
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            found[controller] = path
    return found


def unified_cgroup(host: Host, pid: int) -> str | None:
    """The process's cgroup in the v2 tree, None where there is no such tree."""
    return cgroups(host, pid).get("")


def device_descriptors(host: Host, pid: int, prefixes: tuple[str, ...]) -> dict[str, int]:
    """How many descriptors a process holds on each path that starts with one of ``prefixes``."""
    names = host.listdir(f"/proc/{pid}/fd")
    if names is None:
        raise NotFound(f"no process {pid} on {host.name}")
    found: dict[str, int] = {}
    for name in names:
        target = host.readlink(f"/proc/{pid}/fd/{name}")
        if target is not None and target.startswith(prefixes):
            found[target] = found.get(target, 0) + 1
    return found
