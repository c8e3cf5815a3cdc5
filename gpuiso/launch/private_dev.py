# SPDX-License-Identifier: Apache-2.0
"""A /dev of the workload's own: the default nodes, those of its GPUs, terminals and shared memory, nothing else."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Sequence

from gpuiso.errors import NotSupported
from gpuiso.gpu.model import DeviceNode
from gpuiso.kernel.mount import MS_BIND, MS_MOVE, MS_NOEXEC, MS_NOSUID, MS_REC, MS_SLAVE, mount, unshare
from gpuiso.kernel.ns import CLONE_NEWNS
from gpuiso.policy.nodes import NODE_SETS

__all__ = ["PrivateDev"]

_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}
_KEPT = ("pts", "shm", "mqueue", "hugepages")


class PrivateDev:
    """Made in two parts: the new /dev beside the old one, before device rules hold, then its :meth:`move` to /dev.

    :raises NotSupported: this kernel or the caller's rights do not allow it.
    """

    def __init__(self, nodes: Sequence[DeviceNode]) -> None:
        try:
            unshare(CLONE_NEWNS)
            mount("none", "/", None, MS_REC | MS_SLAVE)
            self._directory = tempfile.mkdtemp(prefix="gpuiso-dev-", dir="/run")
            mount("tmpfs", self._directory, "tmpfs", MS_NOSUID | MS_NOEXEC, "mode=755,size=64k,nr_inodes=4k")
            self._fill(nodes)
        except OSError as error:
            raise NotSupported(f"a private /dev cannot be made: {error}") from error

    def _fill(self, nodes: Sequence[DeviceNode]) -> None:
        for path, (major, minor) in NODE_SETS["default-nodes"].items():
            if minor is not None and path not in ("/dev/ptmx", "/dev/console"):
                self._node(path, major, minor, 0o666, 0, 0)
        for node in nodes:
            if node.major is None or node.minor is None:
                continue
            there = node.actual
            mode, uid, gid = (0o666, 0, 0) if there is None else (there.mode, there.uid, there.gid)
            self._node(node.path, node.major, node.minor, mode, uid, gid)
        for name, target in _LINKS.items():
            os.symlink(target, f"{self._directory}/{name}")
        for name in _KEPT:
            if os.path.isdir(f"/dev/{name}"):
                os.mkdir(f"{self._directory}/{name}")
                mount(f"/dev/{name}", f"{self._directory}/{name}", None, MS_BIND | MS_REC)
        if os.path.islink("/dev/log"):
            os.symlink(os.readlink("/dev/log"), f"{self._directory}/log")

    def _node(self, path: str, major: int, minor: int, mode: int, uid: int, gid: int) -> None:
        place = f"{self._directory}/{path.removeprefix('/dev/')}"
        os.makedirs(os.path.dirname(place), exist_ok=True)
        os.mknod(place, stat.S_IFCHR | 0o600, os.makedev(major, minor))
        os.chmod(place, mode)
        os.chown(place, uid, gid)

    def move(self) -> None:
        """From here on /dev is the new one. :raises NotSupported: the kernel refuses."""
        try:
            mount(self._directory, "/dev", None, MS_MOVE)
            os.rmdir(self._directory)
        except OSError as error:
            raise NotSupported(f"a private /dev cannot be put in its place: {error}") from error
