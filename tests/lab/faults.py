# SPDX-License-Identifier: Apache-2.0
"""GPU access lost in ways that real hosts lose it, made for real in a lab."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpuiso.kernel import bpf
from tests.lab.access import open_in_container
from tests.lab.errors import LabError
from tests.lab.host import Lab
from tests.lab.images import docker_image
from tests.lab.node import CONTROL_MINOR, NVIDIA_MAJOR

# include/uapi/linux/bpf.h: instruction codes, and BPF_DEVCG_DEV_CHAR of struct bpf_cgroup_dev_ctx.access_type.
LDX_W, AND32_K, JNE_K, MOV64_K, EXIT = 0x61, 0x54, 0x55, 0xB7, 0x95
DEV_CHAR = 2
TYPE_MASK = 0xFFFF


@dataclasses.dataclass(frozen=True)
class LostGpu:
    """A running Docker container that had a GPU and lost it."""

    container: str
    """Its full id."""
    scope: str
    """The systemd unit it runs in."""
    node: str
    before: str
    """What an open of the node gave in the new container (errno's name): no GPU was asked for."""
    hooked: str
    """What it gave after the legacy hook's work: ENXIO, for no driver stands behind the node."""
    after: str
    """What it gave after the loss."""


def gpu_container(lab: Lab, name: str, *, gpu: int = 0) -> LostGpu:
    """A container whose GPU was added behind systemd's back, as a legacy prestart hook does; it still has it.

    The scope's device program is replaced by one that also allows the GPU's nodes, and the nodes are made in the
    container's /dev. systemd knows of neither. ``after`` is what ``hooked`` is.
    """
    lab.run(["docker", "rm", "--force", name], check=False)
    container = lab.run(["docker", "run", "--detach", "--name", name, docker_image(lab)]).stdout.strip()
    scope = f"docker-{container}.scope"
    node = f"/dev/nvidia{gpu}"
    devices = [(NVIDIA_MAJOR, gpu), (NVIDIA_MAJOR, CONTROL_MINOR)]
    for path, (major, minor) in zip((node, "/dev/nvidiactl"), devices, strict=True):
        lab.run(["docker", "exec", container, "mknod", "-m", "666", path, "c", str(major), str(minor)])
    before = open_in_container(lab, container, node)
    allow_behind_systemd(lab.host_cgroup(f"/system.slice/{scope}"), devices)
    hooked = open_in_container(lab, container, node)
    return LostGpu(container, scope, node, before, hooked, hooked)


def lose_gpu_by_daemon_reload(lab: Lab, name: str = "lost-by-reload") -> LostGpu:
    """Lose a container's GPU to ``systemctl daemon-reload``.

    systemd 252 attaches a program of its own to the scope on every reload, and both must allow. systemd 257 leaves
    the scope alone then: ``after`` is ENXIO, nothing is lost.
    """
    had = gpu_container(lab, name)
    lab.run(["systemctl", "daemon-reload"])
    return dataclasses.replace(had, after=open_in_container(lab, had.container, had.node))


def lose_gpu_by_set_property(lab: Lab, name: str = "lost-by-property") -> LostGpu:
    """Lose a container's GPU to a change of any property of its scope, as every ``docker update`` makes."""
    had = gpu_container(lab, name)
    lab.run(["systemctl", "set-property", "--runtime", had.scope, "TasksMax=5000"])
    return dataclasses.replace(had, after=open_in_container(lab, had.container, had.node))


def repair_through_systemd(lab: Lab, lost: LostGpu) -> str:
    """Tell systemd what the container may use, which also reaches the running one; returns what an open gives."""
    minors = (int(lost.node.removeprefix("/dev/nvidia")), CONTROL_MINOR)
    allow = [f"DeviceAllow=/dev/char/{NVIDIA_MAJOR}:{minor} rwm" for minor in minors]
    lab.run(["systemctl", "set-property", "--runtime", lost.scope, *allow])
    return open_in_container(lab, lost.container, lost.node)


def allow_behind_systemd(cgroup: Path, devices: Sequence[tuple[int, int]]) -> None:
    """Replace a cgroup's device program by one that first allows these character devices (major, minor).

    The original program follows unchanged. Raises :class:`LabError` unless exactly one program is attached.
    """
    with _opened(os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY)) as directory:
        ids = bpf.prog_query(directory).ids
        if len(ids) != 1:
            raise LabError(f"{cgroup}: {len(ids)} device programs, not the one its runtime attached")
        with _opened(bpf.prog_get_fd_by_id(ids[0])) as old:
            original = bpf.prog_info(old).insns
            if original is None:
                raise LabError(f"{cgroup}: the kernel withholds the device program")
            blocks = b"".join(_allow(major, minor) for major, minor in devices)
            with _opened(bpf.prog_load(blocks + original)) as new:
                flags = bpf.BPF_F_ALLOW_MULTI | bpf.BPF_F_REPLACE
                bpf.prog_attach(directory, new, flags=flags, replace_fd=old)


def _allow(major: int, minor: int) -> bytes:
    """Return 1 for this character device and go on otherwise; r1 stays the context."""
    return b"".join(
        (
            _insn(LDX_W, 2, 1, 0, 0),
            _insn(AND32_K, 2, 0, 0, TYPE_MASK),
            _insn(JNE_K, 2, 0, 6, DEV_CHAR),
            _insn(LDX_W, 2, 1, 4, 0),
            _insn(JNE_K, 2, 0, 4, major),
            _insn(LDX_W, 2, 1, 8, 0),
            _insn(JNE_K, 2, 0, 2, minor),
            _insn(MOV64_K, 0, 0, 0, 1),
            _insn(EXIT, 0, 0, 0, 0),
        )
    )


def _insn(code: int, dst: int, src: int, offset: int, immediate: int) -> bytes:
    return struct.pack("=BBhi", code, src << 4 | dst, offset, immediate)


@contextlib.contextmanager
def _opened(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)
