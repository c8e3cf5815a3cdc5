# SPDX-License-Identifier: Apache-2.0
"""The device programs of a cgroup on the running machine, asked of the kernel with bpf(2)."""

from __future__ import annotations

import errno
import os

from gpuiso.errors import Unknown
from gpuiso.host.protocol import DeviceProgram
from gpuiso.kernel.bpf import prog_get_fd_by_id, prog_info, prog_query

__all__ = ["query_device_programs"]

_RETRIES = 20  # how often programs may be replaced under our eyes before we give up


def query_device_programs(directory: str, cgroup: str) -> tuple[DeviceProgram, ...] | None:
    """The programs attached to the cgroup at ``directory``, in the order they run; None if there is no such cgroup.

    :raises Unknown: not permitted to ask (CAP_BPF with CAP_NET_ADMIN, or CAP_SYS_ADMIN), or no BPF_CGROUP_DEVICE
        in this kernel.
    """
    what = f"device programs of {cgroup}"
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unknown(what, os.strerror(error.errno or 0)) from error
    try:
        for _ in range(_RETRIES):
            try:
                return _programs(fd)
            except FileNotFoundError:
                continue  # a program was replaced between the query and the look at it
        raise Unknown(what, f"they were replaced {_RETRIES} times while being read")
    except PermissionError as error:
        raise Unknown(what, "not permitted to ask (needs CAP_BPF and CAP_NET_ADMIN, or CAP_SYS_ADMIN)") from error
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise Unknown(what, "this kernel has no BPF_CGROUP_DEVICE programs") from error
        raise Unknown(what, str(error)) from error
    finally:
        os.close(fd)


def _programs(directory_fd: int) -> tuple[DeviceProgram, ...]:
    query = prog_query(directory_fd)
    return tuple(_program(number, query.attach_flags) for number in query.ids)


def _program(number: int, attach_flags: int) -> DeviceProgram:
    fd = prog_get_fd_by_id(number)
    try:
        info = prog_info(fd)
    finally:
        os.close(fd)
    return DeviceProgram(info.id, info.name, info.tag, attach_flags, info.insns)
