# SPDX-License-Identifier: Apache-2.0
"""Ask the running kernel what a cgroup's device programs answer: real accesses by a child inside it."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpuiso.devfilter.interpret import Access
from gpuiso.kernel import bpf
from gpuiso.kernel.clone3 import clone3
from gpuiso.policy.rule import MKNOD, READ, WRITE

__all__ = ["NodeDirectory", "answers", "attached", "in_cgroup"]

_KINDS = {"b": stat.S_IFBLK, "c": stat.S_IFCHR}


class NodeDirectory:
    """Device nodes of the numbers that accesses name, all of them open to everybody by mode."""

    def __init__(self, path: Path, accesses: Sequence[Access]) -> None:
        self.path = path
        self.accesses = accesses
        for access in accesses:
            node = self.node(access)
            if not node.exists():
                os.mknod(node, _KINDS[access.type] | 0o666, os.makedev(access.major, access.minor))
                node.chmod(0o666)

    def node(self, access: Access) -> Path:
        return self.path / f"{access.type}-{access.major}-{access.minor}"

    def try_all(self) -> bytes:
        """A byte for each access: 1 allowed, 0 denied. Nothing is opened, so no driver is woken."""
        return bytes(self._try(access) for access in self.accesses)

    def _try(self, access: Access) -> bool:
        node = self.node(access)
        if access.mask == MKNOD:
            fresh = f"{node}-{os.getpid()}"
            try:
                os.mknod(fresh, _KINDS[access.type] | 0o600, os.makedev(access.major, access.minor))
            except PermissionError:
                return False
            os.unlink(fresh)
            return True
        # The superuser passes the mode bits, and the nodes exist: only the filter can refuse.
        mode = (os.R_OK if access.mask & READ else 0) | (os.W_OK if access.mask & WRITE else 0)
        return os.access(node, mode)


def in_cgroup(cgroup: Path, nodes: NodeDirectory) -> list[bool]:
    """What a child cloned into ``cgroup`` meets, one answer for each access."""
    cgroup_fd = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY)
    reader, writer = os.pipe()
    pid, pidfd = clone3(cgroup_fd=cgroup_fd)
    if pid == 0:
        status = 1
        with contextlib.suppress(OSError):
            os.write(writer, nodes.try_all())
            status = 0
        os._exit(status)
    os.close(writer)
    os.close(cgroup_fd)
    with os.fdopen(reader, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(pid, 0)
    os.close(pidfd)
    assert len(answer) == len(nodes.accesses), "the child failed"
    return [bool(byte) for byte in answer]


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


def answers(cgroup: Path, program: bytes, nodes: NodeDirectory) -> tuple[bytes, list[bool]]:
    """The translated dump of ``program`` and what it answers to each access."""
    with attached(cgroup, program) as dump:
        return dump, in_cgroup(cgroup, nodes)
