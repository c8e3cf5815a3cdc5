# SPDX-License-Identifier: Apache-2.0
"""Whether the processes of a cgroup may access devices, found by trying from a child inside it.

The nodes are made for the purpose, out of everybody's sight, so that devices can be asked about that have no node in
/dev. access(2) meets the device filters as open(2) does and wakes no driver. All filters are met: the programs of the
cgroup2 tree, and the v1 controller if the child is moved into a cgroup of that too.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import stat
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from gpuiso.errors import Unknown
from gpuiso.kernel.clone3 import clone3

__all__ = ["Asked", "probe_cgroup"]

DEADLINE = 2.0  # seconds for all of them; an access takes microseconds

Asked = tuple[Literal["b", "c"], int, int, int]
"""Device type, major, minor, and the access bits of bpf_cgroup_dev_ctx: 1 mknod, 2 read, 4 write; 0 exists."""

_KINDS = {"b": stat.S_IFBLK, "c": stat.S_IFCHR}
_MKNOD, _READ, _WRITE = 1, 2, 4
_ALLOWED, _DENIED, _NOT_TRIED = b"1", b"0", b"-"


def probe_cgroup(
    asked: Sequence[Asked], *, cgroup: int | None = None, v1_procs: str | None = None, scratch: str | None = None
) -> tuple[bool | None, ...]:
    """For each access: True if it is allowed, False if a filter denies it, None if it could not be tried.

    ``cgroup`` is a descriptor of a cgroup2 directory, ``v1_procs`` the path of a cgroup.procs of the devices
    hierarchy. Nodes are made below ``scratch``, or the directory for temporary files.

    :raises Unknown: no child could be made there, or it did not answer (the cgroup is frozen or full).
    """
    directory = tempfile.mkdtemp(prefix="gpuiso-probe-", dir=scratch)
    try:
        os.chmod(directory, 0o700)
        _make_nodes(Path(directory), asked)
        answer = _ask(Path(directory), asked, cgroup, v1_procs)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    meaning = {_ALLOWED[0]: True, _DENIED[0]: False}
    return tuple(meaning.get(byte) for byte in answer)


def _node(directory: Path, device: Asked) -> str:
    return str(directory / f"{device[0]}-{device[1]}-{device[2]}")


def _make_nodes(directory: Path, asked: Sequence[Asked]) -> None:
    for device in asked:
        try:
            os.mknod(_node(directory, device), _KINDS[device[0]] | 0o666, os.makedev(device[1], device[2]))
        except FileExistsError:
            pass
        except OSError:
            pass  # where the caller may not make it, it is not tried


def _ask(directory: Path, asked: Sequence[Asked], cgroup: int | None, v1_procs: str | None) -> bytes:
    readable, writable = os.pipe2(os.O_CLOEXEC)
    try:
        child, pidfd = clone3(cgroup_fd=cgroup)
    except OSError as error:
        os.close(readable)
        os.close(writable)
        raise Unknown("access from inside the cgroup", f"no child can be made there: {error.strerror}") from error
    if child == 0:
        _child(writable, directory, asked, v1_procs)
    os.close(writable)
    os.close(pidfd)
    limit = time.monotonic() + DEADLINE
    data = b""
    try:
        while len(data) < len(asked) and select.select([readable], [], [], max(0.0, limit - time.monotonic()))[0]:
            chunk = os.read(readable, 1 << 16)
            if not chunk:
                break
            data += chunk
    finally:
        os.close(readable)
    if len(data) < len(asked):
        os.kill(child, signal.SIGKILL)
        if time.monotonic() < limit:
            os.waitpid(child, 0)
            raise Unknown("access from inside the cgroup", "the child could not take its place")
        raise Unknown("access from inside the cgroup", f"no answer within {DEADLINE:g} s: it may be frozen")
    os.waitpid(child, 0)
    return data


def _child(writable: int, directory: Path, asked: Sequence[Asked], v1_procs: str | None) -> None:
    """Runs in the child; never returns."""
    try:
        if v1_procs is not None:
            with open(v1_procs, "w") as file:
                file.write("0")
        os.write(writable, b"".join(_try(directory, device) for device in asked))
    finally:
        os._exit(0)


def _try(directory: Path, device: Asked) -> bytes:
    path, mask = _node(directory, device), device[3]
    if not os.path.lexists(path):
        return _NOT_TRIED
    if mask & _MKNOD:
        try:
            os.mknod(f"{path}-new", _KINDS[device[0]] | 0o600, os.makedev(device[1], device[2]))
        except PermissionError:
            return _DENIED
        except OSError:
            return _NOT_TRIED
        os.unlink(f"{path}-new")
        if mask == _MKNOD:
            return _ALLOWED
    mode = (os.R_OK if mask & _READ else 0) | (os.W_OK if mask & _WRITE else 0)
    return _ALLOWED if os.access(path, mode or os.F_OK) else _DENIED
