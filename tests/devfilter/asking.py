# SPDX-License-Identifier: Apache-2.0
"""Ask the running kernel what a cgroup's device filters answer: real accesses by a child inside it."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from gpuiso.devfilter.interpret import Access
from gpuiso.kernel import bpf
from gpuiso.kernel.clone3 import clone3
from gpuiso.policy.rule import MKNOD, READ, WRITE

__all__ = ["Ask", "asking", "attached"]

Ask = Callable[[], list[bool]]
"""Makes all accesses once; True is allowed."""

_KINDS = {"b": stat.S_IFBLK, "c": stat.S_IFCHR}
_MEMORY = Path("/dev/shm")


class _Nodes:
    """Device nodes of the numbers that accesses name, all of them open to everybody by mode."""

    def __init__(self, directory: Path, accesses: Sequence[Access]) -> None:
        self._accesses = accesses
        self._paths = [str(directory / f"{a.type}-{a.major}-{a.minor}") for a in accesses]
        for path, access in zip(self._paths, accesses, strict=True):
            if not os.path.lexists(path):
                os.mknod(path, _KINDS[access.type] | 0o666, os.makedev(access.major, access.minor))
                os.chmod(path, 0o666)

    def try_all(self) -> bytes:
        """A byte for each access: 1 allowed, 0 denied. Nothing is opened, so no driver is woken."""
        return bytes(map(self._try, self._accesses, self._paths))

    @staticmethod
    def _try(access: Access, path: str) -> bool:
        if access.mask == MKNOD:
            fresh = f"{path}-{os.getpid()}"
            try:
                os.mknod(fresh, _KINDS[access.type] | 0o600, os.makedev(access.major, access.minor))
            except PermissionError:
                return False
            os.unlink(fresh)
            return True
        # The superuser passes the mode bits, and the nodes exist: only a filter can refuse.
        return os.access(path, (os.R_OK if access.mask & READ else 0) | (os.W_OK if access.mask & WRITE else 0))


@contextlib.contextmanager
def asking(accesses: Sequence[Access], *, cgroup: Path | None = None, v1: Path | None = None) -> Iterator[Ask]:
    """A child in the cgroup2 directory ``cgroup`` or the devices hierarchy's ``v1``, ready to be asked."""
    in_memory = _MEMORY.is_dir() and not os.statvfs(_MEMORY).f_flag & os.ST_NODEV
    directory = Path(tempfile.mkdtemp(dir=_MEMORY if in_memory else None))
    nodes = _Nodes(directory, accesses)
    commands, answers = os.pipe(), os.pipe()
    cgroup_fd = None if cgroup is None else os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY)
    pid, pidfd = clone3(cgroup_fd=cgroup_fd)
    if pid == 0:
        os.close(commands[1])
        with contextlib.suppress(OSError):
            if v1 is not None:
                (v1 / "cgroup.procs").write_text(str(os.getpid()))
            while os.read(commands[0], 1):
                os.write(answers[1], nodes.try_all())
        os._exit(0)
    for fd in (commands[0], answers[1], pidfd, *([] if cgroup_fd is None else [cgroup_fd])):
        os.close(fd)

    def ask() -> list[bool]:
        os.write(commands[1], b"?")
        answer = os.read(answers[0], len(accesses))
        assert len(answer) == len(accesses), "the child failed"
        return [bool(byte) for byte in answer]

    try:
        yield ask
    finally:
        os.close(commands[1])
        os.close(answers[0])
        os.waitpid(pid, 0)
        shutil.rmtree(directory)


@contextlib.contextmanager
def attached(cgroup: Path, program: bytes, *, name: str = "") -> Iterator[bytes]:
    """Attach a program to a cgroup for a while; gives the translated dump of it."""
    prog_fd = bpf.prog_load(program, name=name, licence="GPL")
    cgroup_fd = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY)
    try:
        bpf.prog_attach(cgroup_fd, prog_fd)
        try:
            dump = bpf.prog_info(prog_fd).insns
            assert dump is not None
            yield dump
        finally:
            bpf.prog_detach(cgroup_fd, prog_fd)
    finally:
        os.close(cgroup_fd)
        os.close(prog_fd)
